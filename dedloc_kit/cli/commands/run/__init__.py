"""`dedloc run`: what an organizer does with a run that is up, by its folder."""
