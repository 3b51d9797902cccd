"""A client's side of a session: servers die, and it goes on; some answers are computed again."""
