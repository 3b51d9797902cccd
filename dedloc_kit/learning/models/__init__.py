"""Models of the tasks: architectures, first weights, parts, and the loss of large outputs."""
