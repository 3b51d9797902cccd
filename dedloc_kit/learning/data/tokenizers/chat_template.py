"""Chat templates: a conversation as tokens, and which of them the assistant says.

What people and models say is text. Only the template writes control tokens, whatever tags a message spells.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.conversations import ASSISTANT, USER, Message
from dedloc_kit.learning.data.text.plain import PlainTokenizer

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template of a tokenizer that has none."""
_BOS = "{{ bos_token }}"
_PRIVATE_USE = range(0xF0000, 0x10FFFE)
_MAX_TEMPLATE, _MAX_WRITTEN = 100_000, 1_000_000
"""Characters of a template, and of what it writes beside the messages."""
_CLOCK = "strftime_now"


class Refused(ValueError):
    """A template does not take a conversation."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """A conversation as tokens."""

    ids: NDArray[np.int64]
    """[tokens]"""
    said: NDArray[np.bool_]
    """[tokens]: whether the assistant says it; the token that ends its turn is one of them."""
    ends: tuple[int, ...]
    """Of each assistant turn, the number of tokens up to its end."""
    messages: tuple[Message, ...]

    @property
    def bytes(self) -> int:
        """Of what the assistant says, as UTF-8."""
        return sum(len(each.content.encode()) for each in self.messages if each.role == ASSISTANT)


def add_chat(tokenizer: Any) -> None:
    """Prepare a fast tokenizer of transformers for conversations; one with a chat template keeps that.

    Otherwise it gets ChatML: two new tokens, of which `<|im_end|>` becomes the `eos_token`. The template begins with
    the `bos_token` if the tokenizer puts that in front of every text: the model has seen no text without. Batches are
    padded on the left, as generation needs it.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"  # these are what is saved
    if tokenizer.chat_template:
        return
    bos = tokenizer.bos_token_id
    begins = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    tokens = [AddedToken(token, special=True, normalized=False) for token in (IM_START, IM_END)]
    tokenizer.add_tokens(tokens, special_tokens=True)
    tokenizer.eos_token = IM_END
    tokenizer.chat_template = (_BOS if begins else "") + CHATML


def control_tokens(tokenizer: Any) -> list[str]:
    """The added tokens of a tokenizer with which a chat template may control something."""
    template = tokenizer.chat_template or ""
    written = template if isinstance(template, str) else "\n".join(template.values())
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    return [token for token in added if _may_be_written(token, written)]


def _may_be_written(token: str, template: str) -> bool:
    """Whether a chat template may write an added token to control something: its words and white space do not."""
    marked = len(token) > 2 and not all(each.isalnum() or each.isspace() for each in token)
    return marked and (token in template or (token.startswith("<|") and token.endswith("|>")))


class ChatTemplate:
    """The chat template of a fast tokenizer of transformers.

    Raises UserError, in one line with the fix, if the template cannot be used to learn from: it has a syntax error,
    leaves out messages, or ends an answer with no token of its own.

    :param name: of the tokenizer, for people
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        plain = PlainTokenizer(tokenizer, control_tokens(tokenizer))
        self._backend, self._secret = plain.backend, plain.secret
        longest_first = sorted(plain.secret, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._longest = max(map(len, tokenizer.get_vocab()), default=1)
        source = tokenizer.get_chat_template() if isinstance(tokenizer.chat_template, str) else ""
        if len(source) > _MAX_TEMPLATE:
            raise self._unusable(f"it has more than {_MAX_TEMPLATE:,} characters")
        self.reads_clock = _CLOCK in source
        """Whether it may write the time of day, so that a conversation is other tokens tomorrow."""
        try:
            self._opening, self._end_token = self._tried()
        except Refused as error:
            raise self._unusable(str(error)) from None
        self.end: int = tokenizer.convert_tokens_to_ids(self._end_token)
        """The token that ends an answer."""

    def _unusable(self, why: str) -> UserError:
        return UserError(
            f"the chat template of {self._name} cannot be used ({why}); correct its chat_template.jinja, or remove it "
            "to take ChatML"
        )

    def _tried(self) -> tuple[str, str]:
        """What comes between a user turn and its answer where one is asked for, and the token that ends an answer."""
        turns = [Message(role, f"{role} {number}") for number in range(2) for role in (USER, ASSISTANT)]
        between, contents = self._parts(turns)
        prompt, _ = self._parts(turns[:1], add_generation_prompt=True)
        if not all(contents):
            raise Refused("it leaves out what is said")
        ends = {found[0] if (found := self._control.search(between[place])) else "" for place in (2, 4)}
        if len(ends) > 1 or "" in ends:
            raise Refused("it ends an answer with no special token, so a model would never learn to end")
        return prompt[1], ends.pop()

    def tokens(self, messages: Sequence[Message]) -> Spoken:
        """A conversation as the tokenizer's `apply_chat_template` writes it. Raises Refused if the template does not
        take it.

        :param messages: as of a `Conversation`
        """
        between, contents = self._parts(messages)
        text: list[str] = []
        at, begin, spans = 0, 0, list[tuple[int, int]]()
        end_token, opening = self._secret[self._end_token], self._hidden(self._opening)
        for place, written in enumerate(map(self._hidden, between)):
            if place and messages[place - 1].role == ASSISTANT:
                if (end := written.find(end_token)) < 0:
                    raise Refused(f"the chat template does not end an answer with {self._end_token}")
                spans.append((begin, at + end + len(end_token)))
            if place < len(messages) and messages[place].role == ASSISTANT:
                begin = at + (len(opening) if written.startswith(opening) else len(written))
            said = contents[place] if place < len(contents) else ""
            text += [written, said]
            at += len(written) + len(said)
        encoding = self._backend.encode("".join(text), add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        ids = np.array(encoding.ids, dtype=np.int64)
        is_said = np.zeros(len(ids), dtype=np.bool_)
        for begin, end in spans:
            is_said |= (offsets[:, 0] >= begin) & (offsets[:, 1] <= end)
        ends = np.searchsorted(offsets[:, 0], [end for _, end in spans])
        if not (ids[ends - 1] == self.end).all():
            raise Refused(f"the tokenizer joins {self._end_token} with other text")
        return Spoken(ids, is_said, tuple(ends.tolist()), tuple(messages))

    def fitted(self, messages: Sequence[Message], length: int) -> Spoken | None:
        """The same in at most so many tokens: of a longer conversation the turns up to the last answer that fits.

        None if the first answer does not end within them.
        """
        messages = self._bounded(messages, length)
        while messages:
            spoken = self.tokens(messages)
            fitting = sum(end <= length for end in spoken.ends)
            if fitting == len(spoken.ends):
                return Spoken(spoken.ids[:length], spoken.said[:length], spoken.ends, spoken.messages)
            messages = _up_to(messages, fitting)
        return None

    def _bounded(self, messages: Sequence[Message], length: int) -> Sequence[Message]:
        """The messages that may fit: a huge text is not rendered to find out that it does not."""
        room, answers = length * self._longest, 0
        for message in messages[:length]:
            room -= len(message.content)
            if room < 0:
                break
            answers += message.role == ASSISTANT
        return _up_to(messages, answers)

    def _hidden(self, written: str) -> str:
        """What the template writes, its control tokens spelled so that no message can spell them."""
        return self._control.sub(lambda found: self._secret[found[0]], written)

    def _parts(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> tuple[list[str], list[str]]:
        """What the template writes before, between and behind the messages, and the messages as it takes them."""
        contents = [each.content for each in messages]
        held = set(chain.from_iterable(contents))
        marks = list(islice((chr(code) for code in _PRIVATE_USE if chr(code) not in held), len(contents)))
        roles = [each.role for each in messages]
        opaque = self._rendered(roles, marks, add_generation_prompt)
        parts = re.split(f"([{''.join(marks)}])", opaque)
        between = parts[::2]
        if parts[1::2] == marks:
            text = self._rendered(roles, contents, add_generation_prompt)
            for taken in (contents, [each.strip() for each in contents]):
                if text == "".join(chain.from_iterable(zip(between, [*taken, ""], strict=True))):
                    return between, taken
        raise Refused("the chat template changes what is said")

    def _rendered(self, roles: Sequence[str], contents: Sequence[str], add_generation_prompt: bool) -> str:
        said = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            text = str(
                self._tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=add_generation_prompt)
            )
        except Exception as error:  # a template may raise anything
            lines = str(error).strip().splitlines() or [type(error).__name__]
            where = f" in line {line}" if (line := getattr(error, "lineno", None)) else ""
            raise Refused(f"{lines[0][:200]}{where}") from None
        if len(text) > _MAX_WRITTEN + sum(map(len, contents)):
            raise Refused("the chat template writes too much")
        return text


def _up_to(messages: Sequence[Message], answers: int) -> Sequence[Message]:
    """The first messages, up to so many answers."""
    places = [place for place, each in enumerate(messages, start=1) if each.role == ASSISTANT]
    return messages[: places[answers - 1]] if answers else ()
