"""Large bytes from several donors; it does not know what they mean."""
