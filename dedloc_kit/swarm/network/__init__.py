"""How one peer reaches and answers another; it knows nothing of training."""
