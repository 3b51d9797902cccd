"""The page of a swarm that serves a model."""
