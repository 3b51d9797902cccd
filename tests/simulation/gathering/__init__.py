"""How groups form, in simulated time."""
