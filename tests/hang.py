"""How long a test waits for what comes at once."""

HANG = 240.0
"""Seconds, on however busy a machine: what is not there by then never comes. pytest ends a test after 300."""
