"""This machine: what it is, whether it can help, who its user is, and how the network reaches it."""
