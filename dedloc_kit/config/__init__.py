"""The two configurations: what all peers of a run share, and what one machine decides for itself."""
