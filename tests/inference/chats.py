"""Chats with a tiny model whose layers are in this process."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.blocks.ends import ends
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.inference.answering import ChatModel
from dedloc_kit.inference.chat import Chat
from dedloc_kit.inference.served_chat import of_swarm
from tests.blocks import tiny

END = "<end>"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}<assistant>"
ROUTE = [("Qm-a", "Rabi", 0, 2), ("Qm-b", "", 2, 4)]


def tokenizer(template: str | None = TEMPLATE) -> Any:
    """Each byte is a token: a Bengali letter has three."""
    vocabulary = {letter: number for number, letter in enumerate([END, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    core = Tokenizer(models.BPE(vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END)
    made.chat_template = template
    return made


class Layers:
    """All layers, in this process; counts what goes in."""

    def __init__(self, whole: Any, length: int, before: Callable[[], None]) -> None:
        self.length, self.closed, self.given = length, False, list[int]()
        self._span, self._before = CachedSpan(Span.of(whole, 0, tiny.LAYERS)), before

    def __call__(self, hidden: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
        self._before()
        self.given.append(hidden.shape[1])
        return self._span(hidden, attention_mask, position_ids, past)

    def route(self) -> list[tuple[str, str, int, int]]:
        return ROUTE

    def close(self) -> None:
        self.closed = True


class Swarm:
    """A model as a chat gets it.

    :ivar before: called before each step
    """

    def __init__(self, **changed: Any) -> None:
        self.whole = tiny.model("Llama", vocab_size=257, eos_token_id=0, pad_token_id=0, **changed)
        self.sessions: list[Layers] = []
        self.before: Callable[[], None] = lambda: None
        self.loads = 0
        self.closed = threading.Event()

    def load(self, told: Callable[[str], None]) -> ChatModel:
        self.loads += 1
        told("connecting to toy")
        tensors = self.whole.state_dict()
        outside = Span(self.whole.config, 0, 1).layout.outside(tensors)
        model = ends(self.whole.config, {name: tensors[name] for name in outside}, self._begin)
        model.network = SimpleNamespace(swarm=SimpleNamespace(name="toy"), close=self.closed.set)
        return of_swarm(model, self.tokenizer)

    tokenizer = tokenizer()

    def _begin(self, length: int) -> Layers:
        self.sessions.append(Layers(self.whole, length, lambda: self.before()))
        return self.sessions[-1]


def answered(chat: Chat, text: str) -> Any:
    """The turn, once it is over."""
    assert chat.tried.wait(60)
    assert chat.say(text).wait(60)
    return chat.snapshot().turns[-1]
