"""From files on the Hub or on disk to what a model is trained on."""
