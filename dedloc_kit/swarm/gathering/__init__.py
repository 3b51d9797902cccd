"""Whom to take the next step with, when its batch is full, and how to reach the others' head. No I/O."""
