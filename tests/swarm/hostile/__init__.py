"""Attacks on a real swarm, each by a client on loopback that speaks the real protocols."""
