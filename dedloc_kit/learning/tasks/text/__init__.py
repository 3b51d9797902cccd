"""What tasks of text share: reading, models by name, going on from a model, what viewers are shown."""
