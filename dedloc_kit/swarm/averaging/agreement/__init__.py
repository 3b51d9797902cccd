"""How the members of a round agree on who counts, whatever happens to any of them."""
