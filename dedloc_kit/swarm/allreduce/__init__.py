"""The all-reduce of a group: chunks, reducers, streams."""
