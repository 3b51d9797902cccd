"""How files on the Hub or on disk are read, and what of them cannot be used."""
