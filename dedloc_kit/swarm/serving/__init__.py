"""Layers of a language model for those who use it: who has what of its weights, and who computes what."""
