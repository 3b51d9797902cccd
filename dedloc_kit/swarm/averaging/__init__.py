"""One all-reduce: members in, the same bits out, or who is to blame."""
