"""Tokenizers that change nothing: cased, no unknown token, and every text comes back from its tokens.

Both cut a text into pieces first, and no token goes beyond one: a word with the space before it, a run of punctuation
or of white space, a single digit. Byte pair encoding cuts as llama.cpp does (`qwen35`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.tokenizers import qwen35
from dedloc_kit.learning.data.tokenizers.unigram import reproducible_vocabulary

MAX_LETTERS = 128
"""Of a piece of Unigram's: some scripts have no spaces."""
_WORD = r"[\p{L}\p{M}\u200c\u200d]"
"""Marks are half of a word in Bengali or Thai; joiners stand within words."""
_PIECES = "|".join(
    [
        rf" ?{_WORD}{{1,{MAX_LETTERS}}}",
        r"\p{N}",
        r" ?[^\s\p{L}\p{M}\p{N}\u200c\u200d]{1,16}",
        r"[\r\n]{1,16}",
        r"\s{1,16}(?!\S)",  # of several spaces the last one belongs to the word behind them
        r"\s",
    ]
)
_COVERAGE = 0.9999
"""The share of a text's characters that Unigram has tokens for: each of the others, such as the one Chinese character
in a Bengali text, would take a token that is as good as never used. They are spelled by their bytes."""
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level_bpe(texts: Iterable[str], vocabulary: int, special: Iterable[str]) -> Tokenizer:
    """Byte pair encoding over bytes (Radford et al. 2019), of a form that llama.cpp has too (`known`)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = qwen35.byte_level(bounded=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=_added(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = qwen35.byte_level()
    return tokenizer


def unigram_with_bytes(texts: Iterable[str], vocabulary: int, special: Iterable[str]) -> Tokenizer:
    """Unigram (Kudo 2018) that spells characters it does not know by their bytes.

    A text that spells out a byte's token is no byte: digits stand alone, and each of these tokens has one.

    Raises UserError if the vocabulary has no room for the bytes.
    """
    special = list(special)
    if vocabulary <= len(special) + len(BYTES):
        raise UserError(f"task.vocab_size must be more than {len(special) + len(BYTES)}: so many are no text, or bytes")
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.UnigramTrainer(vocab_size=vocabulary - len(special) - len(BYTES), show_progress=False)
    tokenizer.train_from_iterator(_covered(texts), trainer)
    learned = reproducible_vocabulary(tokenizer, special=0)
    lowest = min((score for _, score in learned), default=0.0)
    vocabulary_of = [*((token, 0.0) for token in special), *((token, lowest) for token in BYTES), *learned]
    # The model asks for an unknown token, and never uses it: a byte that no text spells.
    tokenizer.model = models.Unigram(vocabulary_of, unk_id=len(special), byte_fallback=True)
    tokenizer.add_special_tokens(_added(special))
    return tokenizer


def _added(special: Iterable[str]) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in special]


def _covered(texts: Iterable[str]) -> Iterator[str]:
    """The texts without their rarest characters. They are kept in memory, as the trainer would in any case."""
    kept = list(texts)
    counts: Counter[str] = Counter()
    for text in kept:
        counts.update(text)
    left = sum(counts.values()) * (1 - _COVERAGE)
    rare: dict[int, None] = {}
    for character, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        left -= count
        if left < 0:
            break
        rare[ord(character)] = None
    return (text.translate(rare) for text in kept)
