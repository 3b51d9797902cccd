"""sahajBERT's tokenizer: Unigram (Kudo 2018) on lower-case text, with a token for what it does not know."""

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from dedloc_kit.learning.data.tokenizers.special_tokens import CLS, MASK, PAD, SEP, UNK

SPECIAL = PAD, UNK, CLS, SEP, MASK

_DECIMALS = 4
_TRAINERS_STEP = 1e-4


def lower_case_unigram(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Trained on the texts; without any it has the special tokens alone."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.NFKC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), unk_token=UNK, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    special = [(token, 0.0) for token in SPECIAL]
    tokenizer.model = models.Unigram([*special, *reproducible_vocabulary(tokenizer, len(SPECIAL))], SPECIAL.index(UNK))
    return tokenizer


def reproducible_vocabulary(tokenizer: Tokenizer, special: int) -> list[tuple[str, float]]:
    """The trained tokens and scores, without the special ones before them and what differs from process to process.

    The trainer adds scores up in the order of a hash table: they are rounded. In such an order it also gives the
    characters that it keeps only to have them all the lowest score and one step more for each: all get the lowest.
    """
    learned: list[tuple[str, float]] = json.loads(tokenizer.to_str())["model"]["vocab"][special:]
    lowest = min((score for _, score in learned), default=0.0)
    kept = lowest + _TRAINERS_STEP * sum(len(token) == 1 for token, _ in learned)
    scored = [
        (token, round(lowest if len(token) == 1 and score <= kept else score, _DECIMALS)) for token, score in learned
    ]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))
