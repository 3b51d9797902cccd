"""Pieces of a language model: layers as spans, the user's ends, weights, and who serves what."""
