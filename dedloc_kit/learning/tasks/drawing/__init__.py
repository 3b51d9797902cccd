"""What the task `text-to-image` is made of; it stands in no other room."""
