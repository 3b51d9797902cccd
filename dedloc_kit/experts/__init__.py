"""Layers that are mixtures of experts, and the experts themselves, wherever they are held."""
