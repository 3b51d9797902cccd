"""Folders with tiny models of random weights, and tokenizers that the kit has made."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from dedloc_kit.inference.chat import Chat
from dedloc_kit.inference.local_chat import local
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.pretrained import load_pretrained
from tests.blocks import tiny
from tests.text_runs import WORDS

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n' }}"
)


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Any:
    """A new folder with a tokenizer of the kit, which has control tokens if it has a template."""
    train_tokenizer((" ".join(WORDS) for _ in range(20)), 330, folder, "bpe", CAUSAL)
    made = load_pretrained(AutoTokenizer, folder)
    if template is not None:
        made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        made.eos_token, made.chat_template = "<|im_end|>", template
    made.save_pretrained(folder)
    return made


def write_model(folder: Path, template: str | None = TEMPLATE, family: str = "Llama", **changed: Any) -> Any:
    """A model's folder; returns the model, whose `tokenizer` is its own."""
    tokenizer = write_tokenizer(folder, template)
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    whole = tiny.model(family, vocab_size=len(tokenizer), bos_token_id=tokenizer.bos_token_id, **ends, **changed)
    whole.save_pretrained(folder)
    whole.tokenizer = tokenizer
    return whole


def chat_with_folder(folder: Path, length: int = 256, most: int = 12) -> Chat:
    return Chat(partial(local, str(folder), device="cpu"), length=length, most=most)
