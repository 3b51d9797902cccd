"""How peers use what others offer: who offers what, streams to them, also through a third one, tensors on these."""
