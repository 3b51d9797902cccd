"""What members of an all-reduce say to each other, in order, and how far ahead one sends."""
