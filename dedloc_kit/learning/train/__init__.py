"""The parts of training that know nothing of other peers: optimizer, schedule, device and checkpoints."""
