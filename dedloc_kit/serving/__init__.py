"""What a swarm is that serves a model: its configuration, and what its servers say of themselves."""
