"""What a peer gathers for the next global step, as gradients or by steps of its own."""
