"""A server's side of sessions: what it computes for whom, with what, and where that goes."""
