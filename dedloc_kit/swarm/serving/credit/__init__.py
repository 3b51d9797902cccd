"""How a server's work comes to its credit: its clients sign, it collects, the organizer counts."""
