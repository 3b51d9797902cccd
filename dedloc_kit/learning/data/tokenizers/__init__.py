"""Making, checking and using a vocabulary."""
