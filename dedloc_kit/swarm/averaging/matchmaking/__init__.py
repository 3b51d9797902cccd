"""How the members of a round find each other, and who belongs to it."""
