"""One volunteer's session, behind the notebook's panel and the terminal alike."""
