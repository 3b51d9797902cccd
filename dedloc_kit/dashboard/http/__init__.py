"""What every answer over HTTP goes through, whatever it says."""
