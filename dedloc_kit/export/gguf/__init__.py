"""GGUF files, which llama.cpp and ollama read: weights, tokenizer and chat template of a model in one file.

A file says exactly what the model of transformers does, or it is not written: `architectures` knows what llama.cpp
computes, `vocabulary` how it splits texts. What GGUF cannot express is folded into the weights where that is exact.
"""

from dedloc_kit.export.gguf.weights import Kind
from dedloc_kit.export.gguf.writing import write_gguf

__all__ = ["Kind", "write_gguf"]
