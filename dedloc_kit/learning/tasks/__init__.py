"""The tasks that the kit brings."""
