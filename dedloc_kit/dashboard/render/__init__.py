"""What is drawn of a run, and what other programs are told of it; no HTTP."""
