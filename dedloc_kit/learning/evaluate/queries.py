"""The negative log-likelihood of texts, or of words in them, to a language model.

A causal model predicts a text token by token. A masked model has a pseudo-likelihood (Salazar et al. 2020, arXiv
1910.14659): that of each word given all other words. The tokens of a word are predicted from left to right while the
later ones are hidden too (Kauf and Ivanova 2023, arXiv 2305.10588): otherwise the rest of a rare word gives it away,
and a vocabulary of small pieces scores better.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.evaluate.pretrained import forward

_AT_ONCE = 1024
"""Tokens: for a vocabulary of 256,000 their scores take 1 GB."""
_WORD = re.compile(r"\S{1,16}")

OnDone = Callable[[int], None]
"""Is called with how many queries more have been answered."""


def words(text: str) -> list[tuple[int, int]]:
    """Return where each word begins and ends: a run of characters between white space, cut after 16 characters.

    The rule is about characters, so that it is the same for all tokenizers; Thai and Chinese have no spaces.
    """
    return [match.span() for match in _WORD.finditer(text)]


def excerpts(text: str, size: int) -> Iterator[str]:
    """Split the text into pieces of whole words (see `words`) of at most `size` bytes, or of one longer word."""
    start = end = 0
    for first, last in words(text):
        if end and len(text[start:last].encode()) > size:
            yield text[start:end]
            start = first
        elif not end:
            start = first
        end = last
    if end:
        yield text[start:end]


def drawn(counts: Sequence[int], wanted: int) -> list[list[int]]:
    """Draw `wanted` words from excerpts of so many words each; return their numbers in each excerpt.

    The same counts give the same words.
    """
    total = sum(counts)
    generator = np.random.default_rng(seed_of("evaluation", "hidden words"))
    numbers = np.sort(generator.choice(total, size=min(wanted, total), replace=False))
    ends = np.cumsum(counts)
    found: list[list[int]] = [[] for _ in counts]
    for number in numbers.tolist():
        excerpt = int(np.searchsorted(ends, number, side="right"))
        found[excerpt].append(number - int(ends[excerpt]) + counts[excerpt])
    return found


@dataclass(frozen=True)
class Query:
    """One row for the model, and what it is to predict there."""

    owner: int = field(compare=False)
    """The number of the text or word whose sum this counts for."""
    input_ids: tuple[int, ...]
    start: int
    """Where the first target is predicted; the others follow."""
    targets: tuple[int, ...]


def causal_queries(tokenizer: Any, texts: Iterable[str], window: int) -> Iterator[Query]:
    """Every token of each text is predicted once, with at least half a window before it, or all that there is.

    Raises UserError if the tokenizer has no token for the beginning, from which the first one is predicted.
    """
    first, plain = _beginning(tokenizer), PlainTokenizer(tokenizer)
    for owner, text in enumerate(texts):
        ids = (first, *plain.ids(text))
        done = 1
        while done < len(ids):
            start = 0 if done == 1 else done - window // 2
            end = min(start + window, len(ids))
            yield Query(owner, ids[start:end], done - start - 1, ids[done:end])
            done = end


def _beginning(tokenizer: Any) -> int:
    """The token from which the first one of a text is predicted: what the tokenizer itself puts there, if it does."""
    usual = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id]
    for token in [*tokenizer("")["input_ids"][:1], *usual]:
        if token is not None:
            return int(token)
    raise UserError(
        f"the tokenizer in {tokenizer.name_or_path} has neither a token that begins a text nor one that ends it; "
        "give it one (bos_token) and save it again"
    )


def masked_queries(tokenizer: Any, texts: Iterable[tuple[str, Sequence[int]]], longest: int) -> Iterator[Query]:
    """Each of the words named by number (see `words`) in each text is predicted; owners are counted through.

    Raises UserError if a text has more tokens than the model takes, or the tokenizer has no mask.
    """
    mask = tokenizer.mask_token_id
    if mask is None:
        raise UserError(f"the tokenizer in {tokenizer.name_or_path} has no mask token, which a masked model needs")
    owner, backend = 0, PlainTokenizer(tokenizer).backend
    for text, numbers in texts:
        encoded = backend.encode(text)
        ids = encoded.ids
        if len(ids) > longest:
            raise UserError(
                f"{text!r:.60} has {len(ids)} tokens, {tokenizer.name_or_path} takes {longest}; leave it out, or lower "
                "--max-length"
            )
        ends = [end for _, end in words(text)]
        parts: list[list[int]] = [[] for _ in [*ends, None]]
        for position, ((_, end), special) in enumerate(zip(encoded.offsets, encoded.special_tokens_mask, strict=True)):
            if not special:
                # A token of white space alone belongs to the word after it, as it does where both are one token.
                parts[bisect_left(ends, end)].append(position)
        for number in numbers:
            hidden = list(ids)
            for position in parts[number]:
                hidden[position] = mask
            for position in parts[number]:
                yield Query(owner, tuple(hidden), position, (ids[position],))
                hidden[position] = ids[position]
            owner += 1


def negative_log_likelihood(
    model: nn.Module,
    queries: Iterable[Query],
    owners: int,
    pad: int,
    on_done: OnDone,
    half: torch.dtype | None = None,
) -> list[float]:
    """Return for each owner the sum of -ln of the probabilities of its targets.

    Equal queries have equal answers, for one answers them all: in half precision a row depends on those beside it.

    :param model: a language model of transformers on its device
    :param pad: a token that fills up the shorter rows, which the model does not see
    :param half: what autocast computes with; the sums are of float32
    """
    device = next(model.parameters()).device
    model.eval()
    asked: dict[Query, list[int]] = {}
    for query in queries:
        asked.setdefault(query, []).append(query.owner)
    sums = [0.0] * owners
    with torch.inference_mode():
        for batch in _batches(asked):
            scores = forward(model, [query.input_ids for query in batch], pad, half).logits
            losses = []
            for query, row in zip(batch, scores, strict=True):
                targets = torch.tensor(query.targets, device=device)
                predictions = row[query.start : query.start + len(targets)].float()
                losses.append(functional.cross_entropy(predictions, targets, reduction="sum"))
            for query, loss in zip(batch, torch.stack(losses).tolist(), strict=True):  # waits for the device once
                for owner in asked[query]:
                    sums[owner] += loss
            on_done(sum(len(asked[query]) for query in batch))
    return sums


def _batches(queries: Iterable[Query]) -> Iterator[list[Query]]:
    """Sort the queries by length, and put as many in a batch as `_AT_ONCE` tokens hold."""
    batch: list[Query] = []
    for query in sorted(queries, key=lambda query: len(query.input_ids)):
        if batch and (len(batch) + 1) * len(query.input_ids) > _AT_ONCE:
            yield batch
            batch = []
        batch.append(query)
    if batch:
        yield batch
