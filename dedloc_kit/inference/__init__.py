"""Using a model that its community serves, as an ordinary model of transformers."""
