"""The text of a chat, in one session with a model: it grows with each turn, and only new tokens are computed."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

import torch
from transformers import StoppingCriteriaList

from dedloc_kit.errors import UserError
from dedloc_kit.inference.prompts import PromptTokenizer
from dedloc_kit.inference.turns import Turn, heard, messages_of

UNFINISHED = "\ufffd"
"""Stands for bytes that are no character yet."""
CONTEXT = 8
"""Tokens of the prompt by which is seen whether an answer begins with a space."""
CONTINUES = "the model has no chat template, so it continues the text that you type instead of answering it"


class Session(Protocol):
    """What a model remembers of one text."""

    cache: Any
    """What `generate` of transformers goes on from; None for a model that remembers nothing."""

    @property
    def tokens(self) -> int:
        """How many it remembers."""

    def keep(self, tokens: int) -> None:
        """Forget at least what follows the first so many tokens."""

    def route(self) -> Sequence[tuple[str, str, int, int]]:
        """Who else computes: peer, name and layers; empty for a model on this machine."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class ChatModel:
    """A causal language model of transformers to chat with, wherever it is.

    :ivar tokenizer: a fast one of transformers
    :ivar begin: a session for so many tokens
    """

    name: str
    model: Any
    tokenizer: Any
    begin: Callable[[int], Session]
    close: Callable[[], None] = lambda: None


class Answering:
    """Writes answers, one after the other, in one thread."""

    def __init__(self, model: ChatModel, length: int, most: int) -> None:
        """Raises UserError if the model's chat template does not work.

        :param length: tokens of a session
        :param most: tokens of an answer, at most half of those
        """
        self._begin, self._model, self._tokenizer = model.begin, model.model, model.tokenizer
        self._prompts = PromptTokenizer(self._tokenizer)
        self._length = min(length, getattr(self._model.config, "max_position_embeddings", None) or length)
        self._most = min(most, self._length // 2)
        settings = self._model.generation_config.eos_token_id
        known = settings if isinstance(settings, list) else [settings]
        self._ends = sorted({token for token in (*known, self._tokenizer.eos_token_id) if token is not None})
        self._first = 0
        self._session: Session | None = None
        self._text: list[int] = []
        self.remark = "" if self._tokenizer.chat_template else CONTINUES
        """How the model answers, if not as a model for chats does."""
        self._tokens([Turn("hello")], "")

    @property
    def forgotten(self) -> int:
        """How many of the first turns the model no longer sees."""
        return self._first

    def route(self) -> Sequence[tuple[str, str, int, int]]:
        """Who else answers: peer, name and layers; empty outside a session."""
        return self._session.route() if self._session is not None else []

    def close(self) -> None:
        """End the session, if there is one."""
        session, self._session, self._text = self._session, None, []
        if session is not None:
            session.close()

    def write(self, turns: Sequence[Turn], system: str, stop: threading.Event, told: Callable[[Turn], None]) -> Turn:
        """Answer the last of the turns; `told` of the answer as it grows, `stop` ends it after the next token.

        Raises UserError and NoRoute; then the next answer begins a new session.

        :param system: what the model is told before the first turn
        """
        prompt = self._prompt(turns, system)
        try:
            session = self._follow(prompt)
            growing = _Growing(self._tokenizer, prompt, turns[-1], told)
            ids = torch.tensor([prompt], device=self._model.device)
            settings = {"eos_token_id": self._ends, "pad_token_id": self._ends[0]} if self._ends else {}
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self._most,
                past_key_values=session.cache,
                streamer=growing,
                stopping_criteria=StoppingCriteriaList(
                    [lambda ids, _: torch.full((len(ids),), stop.is_set(), device=ids.device)]
                ),
                **settings,
            )
        except BaseException as error:
            self.close()
            if isinstance(error, torch.OutOfMemoryError):
                raise UserError("the GPU's memory does not suffice for this text; try /new, or --device cpu") from None
            raise
        self._text = output[0].tolist()
        written = self._text[len(prompt) :]
        if written[-1:] and written[-1] in self._ends:
            return growing.turn()
        return growing.turn("stopped" if stop.is_set() else f"cut off after {len(written):,} tokens")

    def _prompt(self, turns: Sequence[Turn], system: str) -> list[int]:
        """The tokens of all turns that fit, so that an answer fits behind them.

        What is left out makes room for some more turns: else each of them would let the text begin anew.
        """
        room = self._length - self._most
        self._first = min(self._first, len(turns) - 1)  # of a new conversation nothing is forgotten
        if system and self.remark:
            raise UserError("a model without a chat template takes no system text; take it back with /system alone")
        prompt = self._tokens(turns[self._first :], system)
        if system and prompt == self._tokens(turns[self._first :], ""):
            raise UserError(
                "the chat template of this model leaves out the system text; take it back with /system alone"
            )
        if len(prompt) > room:
            while len(prompt) > room // 2 and self._first < len(turns) - 1:
                self._first += 1
                prompt = self._tokens(turns[self._first :], system)
        if len(prompt) > room:
            raise UserError(f"that message has {len(prompt):,} tokens and {room:,} fit; say it in fewer words")
        return prompt

    def _tokens(self, turns: Sequence[Turn], system: str) -> list[int]:
        if self.remark:
            return self._prompts.text("\n".join(turn.asked + turn.answer for turn in heard(turns)))
        try:
            return self._prompts.chat(messages_of(turns, system))
        except UserError:
            raise
        except Exception as error:  # a template raises whatever it likes
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(
                f"the chat template of this model does not take the conversation ({said}); try /new, or /system alone, "
                "or mend its chat_template.jinja"
            ) from None

    def _follow(self, prompt: list[int]) -> Session:
        """A session that remembers that with which the prompt begins, and nothing else."""
        if self._session is None:
            self._session = self._begin(self._length)
        held = self._session.tokens
        pairs = zip(self._text[:held], prompt[:-1], strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if same < held:  # its own words are not always cut into the tokens that it chose
            self._session.keep(same)
        return self._session


class _Growing:
    """A streamer: the answer as text, whose characters are whole however many tokens they take."""

    def __init__(self, tokenizer: Any, prompt: list[int], turn: Turn, told: Callable[[Turn], None]) -> None:
        self._tokenizer, self._turn, self._told = tokenizer, turn, told
        self._context = prompt[-CONTEXT:]
        self._before = len(self._decoded([]))
        self._tokens: list[int] = []
        self._began = self._last = 0.0
        self._prompt_is_next = True

    def put(self, tokens: torch.Tensor) -> None:
        if self._prompt_is_next:
            self._prompt_is_next = False
            return
        self._last = time.monotonic()
        self._began = self._began or self._last
        self._tokens += tokens.flatten().tolist()
        self._told(self.turn())

    def end(self) -> None:
        """Of the library; `turn` is final now."""

    def turn(self, note: str = "") -> Turn:
        """The answer as far as it has come."""
        answer = self._decoded(self._tokens)[self._before :].rstrip(UNFINISHED)
        tokens, seconds = len(self._tokens), self._last - self._began
        return replace(self._turn, answer=answer, note=note, tokens=tokens, seconds=seconds)

    def _decoded(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(
            [*self._context, *tokens], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)
