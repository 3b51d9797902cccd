"""What is known of the run at this moment, and how viewers learn of it."""
