"""Layers and models that other peers compute with: what all of that needs, whatever the model is."""
