"""Every record that crosses the network or is stored, by subject. Whatever comes from a peer is parsed here first."""
