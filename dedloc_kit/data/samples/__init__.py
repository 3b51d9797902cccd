"""From tokens to samples: what is packed together, and what is hidden."""
