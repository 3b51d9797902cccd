"""What a run learns and how: tasks, models, data, training and evaluation. Nothing here needs a peer."""
