"""Who serves or holds which layers, and which way a call takes: each peer decides alone, by what all have announced."""
