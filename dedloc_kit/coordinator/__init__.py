"""The coordinator: it follows the run, and keeps, measures, judges and publishes what it sees."""
