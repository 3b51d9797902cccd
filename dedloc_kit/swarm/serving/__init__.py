"""A model that its community serves: servers hold spans of its layers, clients the ends."""
