"""The devices of this machine: forward and backward, within the memory there is."""
