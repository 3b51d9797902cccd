"""What people read, wherever they read it: numbers and names, bars and views in a terminal, curves."""
