"""What a volunteer sees in a notebook."""
