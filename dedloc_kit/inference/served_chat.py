"""A served model to chat with: its layers are with others, who see what is typed."""

from functools import partial
from pathlib import Path
from typing import Any

from dedloc_kit.inference.answering import ChatModel
from dedloc_kit.inference.model import AutoDistributedModelForCausalLM, tokenizer_of
from dedloc_kit.inference.turns import Told


def served(where: str, folder: str | Path | None, code: str, told: Told) -> ChatModel:
    """The model of an invitation; see `chat.chat_with`. Raises UserError."""
    model = AutoDistributedModelForCausalLM.from_pretrained(where, folder=folder, code=code, told=told)
    try:
        return of_swarm(model, tokenizer_of(model))
    except BaseException:
        model.network.close()
        raise


def of_swarm(model: Any, tokenizer: Any) -> ChatModel:
    """A model that `AutoDistributedModelForCausalLM` has made."""
    return ChatModel(
        model.network.swarm.name, model, tokenizer, partial(_ServedSession, model), close=model.network.close
    )


class _ServedSession:
    """What the servers of a route remember of one text."""

    def __init__(self, model: Any, length: int) -> None:
        self._entered = model.session(length)
        self.cache = self._entered.__enter__()

    @property
    def tokens(self) -> int:
        held: int = self.cache.get_seq_length()
        return held

    def keep(self, tokens: int) -> None:
        self.cache.crop(tokens - self.tokens)

    def route(self) -> list[tuple[str, str, int, int]]:
        found: list[tuple[str, str, int, int]] = self.cache.through.route()
        return found

    def close(self) -> None:
        self._entered.__exit__(None, None, None)
