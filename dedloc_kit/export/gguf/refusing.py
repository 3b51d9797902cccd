"""What cannot become a GGUF file: one line with a way out."""

from dedloc_kit.errors import UserError


def refused(what: str) -> UserError:
    """An error that says why a model has no exact form in GGUF.

    :param what: a clause, such as `layers with biases are unknown to llama.cpp's qwen3`
    """
    return UserError(f"{what}: there is no exact GGUF file of this model; export it with --to transformers")
