"""Whose work is checked, how it is shown and computed again, and what follows."""
