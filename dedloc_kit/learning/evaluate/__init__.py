"""Does a trained model understand the language? It is fine-tuned on a labelled dataset and scored."""
