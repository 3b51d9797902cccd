"""What a user trains in front of frozen layers, and its files."""
