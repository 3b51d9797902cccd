"""What a run that is open to strangers believes of them: how much each counts, and what one step can do."""
