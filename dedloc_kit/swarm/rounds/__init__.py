"""When to average, with what, and what counts."""
