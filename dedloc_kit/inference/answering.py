"""The text of a chat, in one session with a model's servers: it grows with each turn, and only new tokens travel."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from transformers import StoppingCriteriaList

from dedloc_kit.errors import UserError
from dedloc_kit.inference.prompts import PromptTokenizer
from dedloc_kit.inference.turns import Turn

UNFINISHED = "\ufffd"
"""Stands for bytes that are no character yet."""
CONTEXT = 8
"""Tokens of the prompt by which is seen whether an answer begins with a space."""


class Answering:
    """Writes answers, one after the other, in one thread."""

    def __init__(self, model: Any, tokenizer: Any, length: int, most: int) -> None:
        """
        :param length: tokens of a session
        :param most: tokens of an answer, at most half of those
        """
        self._model, self._tokenizer, self._prompts = model, tokenizer, PromptTokenizer(tokenizer)
        self._length = min(length, getattr(model.config, "max_position_embeddings", None) or length)
        self._most = min(most, self._length // 2)
        settings = model.generation_config.eos_token_id
        known = settings if isinstance(settings, list) else [settings]
        self._ends = sorted({token for token in (*known, tokenizer.eos_token_id) if token is not None})
        self._first = 0
        self._session = ExitStack()
        self._past: Any = None
        self._text: list[int] = []

    @property
    def forgotten(self) -> int:
        """How many of the first turns the model no longer sees."""
        return self._first

    def route(self) -> list[tuple[str, str, int, int]]:
        """Who answers: peer, name and layers; empty outside a session."""
        return self._past.through.route() if self._past is not None else []

    def close(self) -> None:
        """End the session, if there is one."""
        self._past, self._text = None, []
        self._session.close()

    def write(self, turns: Sequence[Turn], stop: threading.Event, told: Callable[[Turn], None]) -> Turn:
        """Answer the last of the turns; `told` of the answer as it grows, `stop` ends it after the next token.

        Raises UserError and NoRoute; then the next answer begins a new session.
        """
        prompt = self._prompt(turns)
        try:
            self._follow(prompt)
            growing = _Growing(self._tokenizer, prompt, turns[-1], told)
            ids = torch.tensor([prompt])
            settings = {"eos_token_id": self._ends, "pad_token_id": self._ends[0]} if self._ends else {}
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self._most,
                streamer=growing,
                stopping_criteria=StoppingCriteriaList([lambda ids, _: torch.full((len(ids),), stop.is_set())]),
                **settings,
            )
        except BaseException:
            self.close()
            raise
        self._text = output[0].tolist()
        written = self._text[len(prompt) :]
        if written[-1:] and written[-1] in self._ends:
            return growing.turn()
        return growing.turn("stopped" if stop.is_set() else f"cut off after {len(written):,} tokens")

    def _prompt(self, turns: Sequence[Turn]) -> list[int]:
        """The tokens of all turns that fit, so that an answer fits behind them.

        What is left out makes room for some more turns: else each of them would let the text begin anew.
        """
        room = self._length - self._most
        prompt = self._tokens(turns[self._first :])
        if len(prompt) > room:
            while len(prompt) > room // 2 and self._first < len(turns) - 1:
                self._first += 1
                prompt = self._tokens(turns[self._first :])
        if len(prompt) > room:
            raise UserError(f"that message has {len(prompt):,} tokens and {room:,} fit; say it in fewer words")
        return prompt

    def _tokens(self, turns: Sequence[Turn]) -> list[int]:
        heard = [*(turn for turn in turns[:-1] if turn.answer), turns[-1]]
        if getattr(self._tokenizer, "chat_template", None):
            said = [[("user", turn.asked), ("assistant", turn.answer)] for turn in heard]
            messages = [{"role": role, "content": text} for turn in said for role, text in turn][:-1]
            return self._prompts.chat(messages)
        return self._prompts.text("\n".join(turn.asked + turn.answer for turn in heard))

    def _follow(self, prompt: list[int]) -> None:
        """Let the session remember that with which the prompt begins, and nothing else."""
        if self._past is None:
            self._past = self._session.enter_context(self._model.session(self._length))
        held = self._past.get_seq_length()
        pairs = zip(self._text[:held], prompt[:-1], strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if same < held:  # its own words are not always cut into the tokens that it chose
            self._past.crop(same - held)


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
