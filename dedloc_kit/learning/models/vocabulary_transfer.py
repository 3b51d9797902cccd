"""A new vocabulary on old weights: each new token begins as the mean of the old tokens that spell it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.data.tokenizers.special_tokens import counterparts
from dedloc_kit.learning.data.tokenizers.spelling import spellings

_DIFFERENT = (
    "task.init_from has another shape than the run's model ('{name}' differs); take it from there: leave out what "
    "task.model and task.architecture say against it"
)


@dataclass(frozen=True)
class Origins:
    """Where the tokens of a new vocabulary come from."""

    parts: Sequence[Sequence[int]]
    """Of each new token the ids of the old ones that spell it; none where they cannot."""

    @property
    def copied(self) -> int:
        return sum(len(each) == 1 for each in self.parts)

    @property
    def averaged(self) -> int:
        return sum(len(each) > 1 for each in self.parts)

    @property
    def drawn(self) -> int:
        return sum(not each for each in self.parts)


def origins(new: Any, old: Any) -> Origins:
    """Which old tokens spell each new one, of two fast tokenizers of transformers.

    The same token if there is one. Else those into which the old tokenizer itself takes the text apart, if they spell
    it: it may take it for the beginning of a word, and knows no part of a character. Else the fewest that do; where
    the old vocabulary has no such text, of the form that its normalization gives it (lower case, say), and last of all
    with or without the space at its front. A special token comes from the one of the same use.
    """
    spelled, old_spelled = spellings(new), spellings(old)
    # The last one of several: the bytes, to which a tokenizer falls back, come first.
    known = {each: number for number, each in enumerate(old_spelled) if each}
    names, old_names = new.convert_ids_to_tokens(range(len(new))), old.get_vocab()
    longest = max(map(len, known), default=0)
    backend = PlainTokenizer(old).backend
    texts = [(each or b"").decode(errors="replace") for each in spelled]
    usual = [each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=False)]
    same_use = counterparts(new, old)

    def parts(number: int) -> list[int]:
        text = spelled[number]
        if not text:
            return [same_use[number]] if number in same_use else []
        same = old_names.get(names[number])
        if same is not None and old_spelled[same] == text:
            return [same]
        if text in known:
            return [known[text]]
        if b"".join(old_spelled[each] or b"" for each in usual[number]) == text:
            return list(usual[number])
        forms = _forms(text, backend.normalizer)
        return next((found for form in forms if (found := _fewest(form, known, longest))), [])

    return Origins([parts(number) for number in range(len(spelled))])


def _forms(text: bytes, normalizer: Any) -> Iterator[bytes]:
    """What may stand in the old vocabulary for a text, the best first."""
    yield text
    with_space, bare = text.startswith(b" "), text.lstrip(b" ")
    try:
        word = bare.decode()
    except UnicodeDecodeError:  # a part of a character
        return
    if normalizer is not None:
        bare = normalizer.normalize_str(word).lstrip(" ▁").replace("▁", " ").encode()
    spaced = b" " + bare
    yield from (spaced, bare) if with_space else (bare, spaced)


def _fewest(text: bytes, known: dict[bytes, int], longest: int) -> list[int]:
    """The fewest known tokens that spell the text one after the other, the longest first; none if they cannot."""
    unreachable = len(text) + 1
    count, length = [unreachable] * len(text) + [0], [0] * len(text)
    for start in reversed(range(len(text))):
        for end in range(min(len(text), start + longest), start, -1):
            if count[end] + 1 < count[start] and text[start:end] in known:
                count[start], length[start] = count[end] + 1, end - start
    if count[0] >= unreachable:
        return []
    found, start = [], 0
    while start < len(text):
        found.append(known[text[start : start + length[start]]])
        start += length[start]
    return found


@torch.no_grad()
def transplant(old: nn.Module, new: nn.Module, made_of: Origins, seed: int) -> None:
    """Give a model the weights of one that differs in its vocabulary alone; both of transformers, on the CPU.

    What has a row for each token (the embeddings and, tied to them or not, the output layer with its bias) gets each
    row as the mean of those of the old tokens; all else is copied. Rows of tokens that none spell are drawn, from
    `seed`, with the mean and spread of the old ones. Rows beyond the vocabulary, which only fill it up, are drawn too.

    Raises UserError if the models differ in more than that.
    """
    generator = torch.Generator().manual_seed(seed)
    theirs, by_token = dict(old.named_parameters()), _rows_of_tokens(new)
    for name, mine in new.named_parameters():
        other = theirs.pop(name, None)
        if other is None or mine.shape[1:] != other.shape[1:] or (name not in by_token and mine.shape != other.shape):
            raise UserError(_DIFFERENT.format(name=name))
        mine.copy_(_rows(other.data, made_of, len(mine), generator) if name in by_token else other)
    if theirs:
        raise UserError(_DIFFERENT.format(name=next(iter(theirs))))


def _rows_of_tokens(model: Any) -> set[str]:
    """The names of the parameters that have a row for each token."""
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    rows = {id(each) for layer in layers if layer is not None for each in layer.parameters()}
    return {name for name, each in model.named_parameters() if id(each) in rows}


def _rows(old: Tensor, made_of: Origins, count: int, generator: torch.Generator) -> Tensor:
    """[count, ...]: the rows of the new tokens."""
    flat = old.reshape(len(old), -1)
    parts = [*made_of.parts, *([()] * (count - len(made_of.parts)))]
    lengths = torch.tensor(list(map(len, parts)))
    ids = torch.from_numpy(np.fromiter(chain.from_iterable(parts), dtype=np.int64))
    means = functional.embedding_bag(ids, flat, lengths.cumsum(0) - lengths, mode="mean")
    none = lengths == 0
    drawn = torch.randn(int(none.sum()), flat.shape[1], generator=generator)
    means[none] = flat.mean(0) + drawn * flat.std(0)
    return means.reshape(count, *old.shape[1:])
