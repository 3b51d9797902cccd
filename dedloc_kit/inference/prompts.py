"""Prompts as tokens: what people and models say is text, and only a chat template writes control tokens."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.data.tokenizers.chat_template import control_tokens

_PRIVATE_USE = range(0xF0000, 0x10FFFE)


class PromptTokenizer:
    """The tokenizer of prompts for one model. Several threads may use it at once.

    :param tokenizer: a fast one of transformers
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._plain = PlainTokenizer(tokenizer, control_tokens(tokenizer))
        longest_first = sorted(self._plain.secret, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._begins = {token[0] for token in longest_first}

    def text(self, text: str) -> list[int]:
        """The tokens of a text, between those that the tokenizer itself puts around it."""
        return self._plain.ids(text, edges=True)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a conversation up to where the model answers, for a tokenizer with a chat template.

        Raises UserError if no way is left to tell the template's control tokens from those that a message spells, and
        what the template raises.
        """
        said = "\n".join(message["content"] for message in messages)
        text, held = self._rendered(messages), {*said}
        begins = sorted(self._begins & held)
        if not begins:
            return self._ids(text)
        # With other characters in place of all with which a control token begins, no message can spell one, whatever
        # the template cuts off or joins.
        unused = islice((chr(code) for code in _PRIVATE_USE if chr(code) not in held), len(begins))
        hidden = dict(zip(begins, unused, strict=True))
        there, back = str.maketrans(hidden), str.maketrans({other: each for each, other in hidden.items()})
        opaque = self._rendered([{**each, "content": each["content"].translate(there)} for each in messages])
        if opaque.translate(back) == text:
            return self._ids(opaque, back)
        # The template looks at what was said: at `</think>`, say, up to which it leaves out an earlier answer.
        found, own = self._control.findall(text), self._control.findall(opaque)
        if found == own:
            return self._ids(text)
        spelled = next(iter(Counter(found) - Counter(own)), begins[0])
        raise UserError(
            f"the chat template changes the messages, and {spelled!r:.80} in them would become a control token; leave "
            "that out"
        )

    def _rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _ids(self, rendered: str, back: Mapping[int, str] | None = None) -> list[int]:
        """The tokens of a text in which every control token is the template's own."""
        secret = self._control.sub(lambda found: self._plain.secret[found[0]], rendered)
        return self._plain.ids(secret.translate(back or {}))
