"""The pieces of tasks that learn features of pictures."""
