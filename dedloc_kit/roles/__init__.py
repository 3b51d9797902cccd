"""What runs in a worker process beside the coordinator: volunteers of every kind, lenders, servers and users."""
