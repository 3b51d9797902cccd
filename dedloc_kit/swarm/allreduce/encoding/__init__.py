"""How numbers travel: few bits for each, and what that loses is sent with the next ones."""
