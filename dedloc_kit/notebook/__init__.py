"""A volunteer's notebook: `join` and its panel."""
