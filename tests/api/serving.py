"""A tiny model behind a real server of the API, and what it says."""

import json
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import requests
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dedloc_kit.api.app import create_app
from dedloc_kit.api.generating import Served
from dedloc_kit.api.server import Server
from dedloc_kit.dashboard.http.sockets import listen, url_of
from tests.hang import HANG

END, TURN = "<|end|>", "<|turn|>"
CONTEXT, VOCABULARY = 512, 300
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system speaks first') }}{% endif %}"
    "<|turn|>{{ message.role }}: {{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)

BENGALI = "নদী আমার ভালোবাসা"


def tokenizer(template: str | None = TEMPLATE) -> Any:
    """Its tokens are hardly more than bytes: of three a Bengali letter is made."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END, TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["river sea river bank of the river"] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, additional_special_tokens=[TURN])
    fast.chat_template = template
    return fast


def grown() -> Any:
    """A tokenizer with one token more than the model has: `quux`."""
    made = tokenizer()
    made.add_tokens([f"<|{number}|>" for number in range(len(made), VOCABULARY)])
    made.add_tokens(["quux"])
    return made


class Tiny(LlamaForCausalLM):
    """Random, or it says what it is told to say.

    :ivar script: the tokens of its next answer
    :ivar failure: what happens instead of an answer
    :ivar pause: seconds before each token
    :ivar passes: how often it has computed
    :ivar waits: it computes nothing while this is cleared
    :ivar generating: answers on their way
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.generating, self._counting = 0, threading.Lock()
        self.waits = threading.Event()
        self.calm()

    def calm(self) -> None:
        """Do as other models do."""
        self.script: list[int] = []
        self.failure: Exception | None = None
        self.passes, self.pause = 0, 0.0
        self.waits.set()

    def generate(self, *args: Any, **options: Any) -> Any:
        with self._counting:
            self.generating += 1
        try:
            return super().generate(*args, **options)
        finally:
            with self._counting:
                self.generating -= 1

    def forward(self, *args: Any, **options: Any) -> Any:
        self.waits.wait(HANG)
        threading.Event().wait(self.pause)
        self.passes += 1
        if self.failure is not None:
            raise self.failure
        output = super().forward(*args, **options)
        if self.script:
            output.logits[:, -1] = -10.0
            output.logits[:, -1, self.script.pop(0)] = 10.0
        return output


def tiny() -> Tiny:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = Tiny(config)
    model.eval().requires_grad_(False)
    for values in model.parameters():
        if values.ndim > 1:
            values.normal_(std=0.3)
    return model


class Api:
    """One server, from a caller's side."""

    def __init__(self, served: Served, url: str) -> None:
        self.served, self.model, self.tokenizer, self.url = served, served.model, served.tokenizer, url

    def say(self, text: str, *, end: bool = True) -> None:
        """Let the model answer this next."""
        self.model.script = self.tokenizer(text)["input_ids"] + ([0] if end else [])

    def post(self, path: str, **asked: Any) -> requests.Response:
        asked = {"model": self.served.name, **asked}
        headers = asked.pop("headers", {})
        stream = bool(asked.get("stream"))
        return requests.post(f"{self.url}/v1/{path}", json=asked, headers=headers, stream=stream, timeout=HANG)

    def chat(self, text: Any = "hello", **asked: Any) -> requests.Response:
        return self.post("chat/completions", **{"messages": [{"role": "user", "content": text}], **asked})

    def complete(self, text: Any = "river", **asked: Any) -> requests.Response:
        return self.post("completions", prompt=text, **asked)

    def error(self, answer: requests.Response, status: int) -> dict[str, Any]:
        """What a refusal says."""
        assert answer.status_code == status, answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error


def events(answer: requests.Response) -> list[Any]:
    """What a stream says; the last is `[DONE]` if it is whole."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    lines = [line.decode() for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    told = [line.removeprefix("data: ") for line in lines]
    return [text if text == "[DONE]" else json.loads(text) for text in told]


@contextmanager
def serving(
    *,
    at_once: int = 4,
    key: str | None = None,
    template: str | None = TEMPLATE,
    hosts: Collection[str] = (),
    elsewhere: bool = False,
    made: Any = None,
) -> Iterator[Api]:
    """:param made: its tokenizer, in place of the usual one"""
    served = Served("river/tiny", tiny(), made or tokenizer(template), at_once)
    listener = listen("127.0.0.1", 0)
    server = Server(create_app(served, key, hosts, elsewhere=elsewhere), listener)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Api(served, url_of("127.0.0.1", listener.getsockname()[1]))
    finally:
        served.model.waits.set()
        server.stop()
        thread.join(HANG)
    assert not thread.is_alive()
