"""What peers tell all others, and who is not believed for a while."""
