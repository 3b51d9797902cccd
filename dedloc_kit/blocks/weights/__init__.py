"""The tensors of a model's checkpoint: which there are, how they are checked, and in how many bits they are held."""
