"""The chain and the votes of a peer on disk and between peers, and the coordinator's resets."""
