"""Calls of trainers to hosts, who hold the experts of a run."""
