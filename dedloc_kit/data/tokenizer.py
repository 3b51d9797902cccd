"""A tokenizer of one's own: trained on the run's texts, loaded by every peer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dedloc_kit.data.folder import new_folder
from dedloc_kit.errors import UserError
from dedloc_kit.hub import repository_and_revision

SPECIAL = PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"

CHARACTERS = 50_000_000
"""What a tokenizer of 32,000 tokens is trained on by default."""
_DIFFERENT_SHARE = 25
"""One in so many characters may belong to a word that was not there before. The trainer's time and memory go by these:
19 million characters of Bengali have 0.8 million of them and take 0.6 GB, and 2 million (the default's bound) of
random letters 1 GB, of Bengali without spaces more than 2 GB."""
_MAX_WORD = 1_000
_WORDS_AT_ONCE = 1_000
_DECIMALS = 4
_TRAINERS_STEP = 1e-4


def training_text(documents: Iterator[str], characters: int, seed: int) -> Iterator[str]:
    """Pieces of at most a megabyte for `train_tokenizer`, about `characters` in all, however the documents look.

    Of a document longer than 1 % of that it takes an excerpt of this length from a random place, so that none
    dominates; words of more than 1,000 characters (there are no spaces in Thai) are cut. It ends sooner once a 25th of
    `characters` was in words not seen before, for they make the trainer's time and memory, or once the second half of
    what was read (and a thousandth of `characters`) had no new word in it: a small corpus repeats.
    """
    generator = np.random.default_rng(seed)
    excerpt = max(1, characters // 100)
    seen: set[str] = set()
    different = total = last_new = 0
    for document in documents:
        start = int(generator.integers(max(1, len(document) - excerpt + 1)))
        words = [
            word[cut : cut + _MAX_WORD]
            for word in document[start : start + excerpt].split()
            for cut in range(0, len(word), _MAX_WORD)
        ]
        for first in range(0, len(words), _WORDS_AT_ONCE):
            some = words[first : first + _WORDS_AT_ONCE]
            piece = " ".join(some)  # runs of whitespace become one space in any case
            yield piece
            total += len(piece)
            new = set(some) - seen
            if new:
                seen |= new
                different += sum(map(len, new))
                last_new = total
            repeats = total - last_new >= max(last_new, characters // 1000)
            if repeats or total >= characters or different * _DIFFERENT_SHARE >= characters:
                return


def train_tokenizer(texts: Iterator[str], vocabulary: int, folder: Path) -> int:
    """Train a Unigram tokenizer as sahajBERT's and save it in a new folder; returns how many tokens it has.

    It folds case but keeps accents, splits digits and punctuation, and puts a pair as `[CLS] A [SEP] B [SEP]`. The
    same texts give the same files, byte for byte. Few texts may give fewer tokens than `vocabulary` asks for.

    A text comes back from its tokens in normalized form, without a space at its front, if all its characters were in
    `texts` and it spells out no special token. Normalized (NMT, NFKC, white space, lower case) means: control
    characters except NUL are dropped; every run of white space is one space, and so are the zero-width space, joiner
    and non-joiner, the byte order mark, U+FFFD and U+2581; compatibility forms are replaced (`½` by `1⁄2`). Any other
    character becomes `[UNK]`, as in sahajBERT's: on held-out Bengali one token in 77,000, which is not worth the 256
    tokens that falling back to bytes would cost.

    Raises UserError if the folder exists already or the texts hold more different characters than the vocabulary has
    room for.
    """
    from transformers import PreTrainedTokenizerFast

    with new_folder(folder) as temporary:
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=_trained(texts, vocabulary),
            pad_token=PAD,
            unk_token=UNK,
            cls_token=CLS,
            sep_token=SEP,
            mask_token=MASK,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            clean_up_tokenization_spaces=False,  # it would join " ," to ","
        )
        wrapped.save_pretrained(temporary)
    return len(wrapped)


def _trained(texts: Iterator[str], vocabulary: int) -> Tokenizer:
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
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except UserError:  # the texts themselves have failed
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise UserError(
            f"no tokenizer of {vocabulary} tokens can be trained ({error}); change the vocabulary"
        ) from error
    if tokenizer.get_vocab_size() <= len(SPECIAL):
        raise UserError("there is no text to train a tokenizer on; correct the run's data")
    tokenizer.model = _reproducible(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, tokenizer.token_to_id(CLS)), (SEP, tokenizer.token_to_id(SEP))],
    )
    return tokenizer


def _reproducible(tokenizer: Tokenizer) -> models.Unigram:
    """The trained model without what differs from process to process.

    The trainer adds scores up in the order of a hash table: they are rounded. In such an order it also gives the
    characters that it keeps only to have them all the lowest score and one step more for each: all get the lowest.
    """
    model = json.loads(tokenizer.to_str())["model"]
    special, learned = model["vocab"][: len(SPECIAL)], model["vocab"][len(SPECIAL) :]
    lowest = min(score for _, score in learned)
    kept = lowest + _TRAINERS_STEP * sum(len(token) == 1 for token, _ in learned)
    scored = [
        (token, round(lowest if len(token) == 1 and score <= kept else score, _DECIMALS)) for token, score in learned
    ]
    scored.sort(key=lambda pair: (-pair[1], pair[0]))
    return models.Unigram([*map(tuple, special), *scored], model["unk_id"])


def load_tokenizer(name: str) -> Any:
    """A fast tokenizer of transformers from a folder or the Hub; raises UserError if there is none.

    :param name: a folder, `OWNER/NAME`, or `OWNER/NAME@REVISION`, which stays the same whatever is pushed later
    """
    from transformers import AutoTokenizer

    hint = "make one with: dedloc tokenizer RUN.toml"
    path, on_hub = Path(name).expanduser(), repository_and_revision(name)
    if not path.is_dir() and (path.exists() or not on_hub):
        raise UserError(f"the tokenizer {name} does not exist; {hint}")
    where, revision = on_hub if on_hub and not path.exists() else (str(path), None)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"the tokenizer {name} cannot be loaded ({said[0][:200]}); {hint}") from None
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer {name} has no fast form (tokenizer.json); {hint}")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes one up for a model that has none
        raise UserError(f"the tokenizer {name} has no tokens; {hint}")
    return tokenizer
