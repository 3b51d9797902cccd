"""What a member commits to in a round, and how it is shown and proven afterwards."""
