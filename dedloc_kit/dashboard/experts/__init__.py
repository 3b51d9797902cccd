"""What the page of a run tells of the experts that volunteers host."""
