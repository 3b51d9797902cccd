"""Answers are generated in threads, and told piece by piece to whoever has asked for them."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from dedloc_kit.api.errors import BUSY_SECONDS, ApiError, told
from dedloc_kit.api.growing import Growing, Piece
from dedloc_kit.api.prompts import Prompt, Prompts
from dedloc_kit.api.requests import AnyRequest
from dedloc_kit.api.sampling import Sampling
from dedloc_kit.api.text import Detokenizer, Stops

UNSAID_CONTEXT = 2048
"""Tokens of a prompt and its answer, where the model's configuration names no limit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """What is served.

    :ivar name: as callers name the model
    :ivar model: a causal language model of transformers, or what has its `generate`, `config` and `generation_config`
    :ivar at_once: requests that are answered at a time; further ones are asked to come later
    """

    name: str
    model: Any
    tokenizer: Any
    at_once: int = 4

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer at most."""
        return int(getattr(self.model.config, "max_position_embeddings", None) or UNSAID_CONTEXT)

    @property
    def rows(self) -> int:
        """Tokens that the model has, by their numbers."""
        return int(getattr(self.model.config, "vocab_size", None) or len(self.tokenizer))


class Generation:
    """The answers to one request on their way: iterate over their pieces, in the event loop that asked for them.

    Raises ApiError while iterated over.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        """Known with the first piece."""
        self.answer_tokens = 0
        """All that were generated, known after the last piece."""
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[Piece | ApiError | None] = asyncio.Queue()  # at most one piece for each token

    def stop(self) -> None:
        """Nobody waits for it any more: it ends with the token that is being computed."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def tell(self, news: Piece | ApiError | None) -> None:
        """From any thread; None, or what went wrong, is the last."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while (news := await self._news.get()) is not None:
            if isinstance(news, ApiError):
                raise news
            yield news


class Generator:
    """Makes answers with one model, several at a time."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._prompts = Prompts(served.name, served.tokenizer, served.context, served.rows)
        self._threads = ThreadPoolExecutor(served.at_once, "answer")
        self._running: set[Generation] = set()

    def begin(self, asked: AnyRequest) -> Generation:
        """Raises ApiError if all places are taken. A place is free again once its thread is."""
        if len(self._running) >= self._served.at_once:
            message = f"all {self._served.at_once} places are taken at the moment; try again in {BUSY_SECONDS} s"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=BUSY_SECONDS)
        generation = Generation()
        self._running.add(generation)
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._work, asked, generation)

        def ended(work: asyncio.Future[ApiError | None]) -> None:
            self._running.discard(generation)  # before its caller can ask again
            generation.tell(work.result())

        work.add_done_callback(ended)
        return generation

    def close(self) -> None:
        """End all answers."""
        for generation in self._running:
            generation.stop()
        self._threads.shutdown(wait=False)

    def _work(self, asked: AnyRequest, generation: Generation) -> ApiError | None:
        try:
            self._generate(asked, generation)
        except Exception as error:
            failure = told(error)
            if failure.status == 500:
                _log.exception("an answer could not be made")
            return failure
        return None

    def _generate(self, asked: AnyRequest, generation: Generation) -> None:
        prompts = self._prompts.read(asked)
        generation.prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)
        for number, prompt in enumerate(prompts):
            if not generation.stopped:
                self._answer(asked, prompt, number * asked.answers, generation)

    def _answer(self, asked: AnyRequest, prompt: Prompt, first: int, generation: Generation) -> None:
        """The answers to one prompt, numbered from `first` on; another prompt beside it changes nothing about them."""
        model, tokenizer = self._served.model, self._served.tokenizer
        sampling = Sampling(asked)
        ends, before = _ends(model, tokenizer), generation.answer_tokens
        answers = [
            Growing(number, Detokenizer(tokenizer, prompt.tokens), Stops(asked.stops()), ends, prompt.most)
            for number in range(first, first + asked.answers)
        ]
        if prompt.echo:
            for number in range(first, first + asked.answers):
                generation.tell(Piece(number, prompt.echo, (), None))

        def hear(tokens: Tensor, _scores: object, **_: object) -> Tensor:
            """After each token, as a stopping criterion: which answers are finished."""
            for answer, token, choice in zip(answers, tokens[:, -1].tolist(), sampling.choices, strict=True):
                if answer.finish is None and (piece := answer.add(token, choice)):
                    generation.tell(piece)
            generation.answer_tokens = before + sum(answer.tokens for answer in answers)
            finished = [generation.stopped or answer.finish is not None for answer in answers]
            return torch.tensor(finished, device=tokens.device)

        rows = torch.tensor([prompt.tokens] * asked.answers, device=model.device)
        model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            max_new_tokens=prompt.most,
            do_sample=False,  # `sampling` leaves one token to take
            num_beams=1,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,  # after the end of the one answer while others go on
            logits_processor=LogitsProcessorList([sampling]),
            stopping_criteria=StoppingCriteriaList([hear]),
        )


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer, as the model and its tokenizer name them."""
    named = model.generation_config.eos_token_id
    ends = {*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id} - {None}
    return sorted(ends)
