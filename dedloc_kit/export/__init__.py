"""What a run becomes for people who never heard of it: folders of transformers, files for other programs."""
