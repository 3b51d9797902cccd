"""`dedloc prepare`: what a run needs before it starts."""
