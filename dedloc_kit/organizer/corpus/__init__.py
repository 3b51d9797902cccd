"""Cleans a run's text once: copies, other languages, what is no prose, and held-out text go."""
