"""The seams between the swarm's logic and the world, and their implementation on hivemind."""
