"""Optimizers whose steps are the same bits on every peer, and those within a peer's own steps."""
