"""Who may join a run, on paper: codes, guests, accounts of the Hub, and why somebody is not let in."""
