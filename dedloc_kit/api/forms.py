"""How answers are written: whole, and as the parts of a stream."""

import secrets
import time
from collections.abc import Iterable
from typing import Any

from dedloc_kit.api.generating import Generation, Served
from dedloc_kit.api.growing import Noted, Piece
from dedloc_kit.api.sampling import Likely

Json = dict[str, Any]


class Form:
    """One answer of the API; `ChatForm` and `CompletionForm` say how its choices look."""

    prefix: str
    kind: str
    part_kind: str

    def __init__(self, served: Served) -> None:
        self._served = served
        self._id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(self, pieces: Iterable[Piece], answers: int, used: Json) -> Json:
        """All answers to a request at once."""
        texts, tokens = [""] * answers, [list[Noted]() for _ in range(answers)]
        finishes: list[str | None] = [None] * answers
        for piece in pieces:
            texts[piece.answer] += piece.text
            tokens[piece.answer] += piece.tokens
            finishes[piece.answer] = piece.finish
        choices = [
            {"index": number, **self._choice(texts[number]), **self._end(tokens[number], finishes[number])}
            for number in range(answers)
        ]
        return {**self._head(self.kind), "choices": choices, "usage": used}

    def part(self, piece: Piece, first: bool) -> Json:
        """A piece of one answer; `first` if nothing of that answer was sent before."""
        choice = {"index": piece.answer, **self._delta(piece.text, first), **self._end(piece.tokens, piece.finish)}
        return {**self._head(self.part_kind), "choices": [choice]}

    def last(self, used: Json) -> Json:
        """The part of a stream that tells the numbers of tokens."""
        return {**self._head(self.part_kind), "choices": [], "usage": used}

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._served.name}

    def _end(self, tokens: Iterable[Noted], finish: str | None) -> Json:
        noted = list(tokens)
        return {"logprobs": self._logprobs(noted) if noted else None, "finish_reason": finish}

    def _choice(self, text: str) -> Json:
        raise NotImplementedError

    def _delta(self, text: str, first: bool) -> Json:
        raise NotImplementedError

    def _logprobs(self, tokens: list[Noted]) -> Json:
        raise NotImplementedError

    def _token(self, token: int) -> str:
        return str(self._served.tokenizer.decode([token]))


class ChatForm(Form):
    prefix, kind, part_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _delta(self, text: str, first: bool) -> Json:
        return {"delta": {"role": "assistant", "content": text} if first else {"content": text}}

    def _logprobs(self, tokens: list[Noted]) -> Json:
        content = [
            {**self._entry(n.choice.taken), "top_logprobs": [self._entry(likely) for likely in n.choice.likeliest]}
            for n in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, likely: Likely) -> Json:
        text = self._token(likely.token)
        whole = "\ufffd" not in text  # else it is part of a character
        return {"token": text, "logprob": likely.logprob, "bytes": list(text.encode()) if whole else None}


class CompletionForm(Form):
    prefix, kind, part_kind = "cmpl", "text_completion", "text_completion"

    def _choice(self, text: str) -> Json:
        return {"text": text}

    def _delta(self, text: str, first: bool) -> Json:
        return {"text": text}

    def _logprobs(self, tokens: list[Noted]) -> Json:
        choices = [noted.choice for noted in tokens]
        return {
            "tokens": [self._token(choice.taken.token) for choice in choices],
            "token_logprobs": [choice.taken.logprob for choice in choices],
            "top_logprobs": [
                {self._token(likely.token): likely.logprob for likely in (choice.taken, *choice.likeliest)}
                for choice in choices
            ],
            "text_offset": [noted.offset for noted in tokens],
        }


def usage(generation: Generation) -> Json:
    """What a finished answer has taken."""
    prompt, answer = generation.prompt_tokens, generation.answer_tokens
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
