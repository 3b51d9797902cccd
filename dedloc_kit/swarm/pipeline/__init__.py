"""Microbatches on their way through the stages of a model that no peer holds: who computes a stage, and who drives."""
