"""A tokenizer of one's own: trained on the run's texts, loaded by every peer."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from tokenizers import Tokenizer, processors

from dedloc_kit.config.task import TaskConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.folder import new_folder
from dedloc_kit.learning.data.tokenizers.bare import tokenizer_files
from dedloc_kit.learning.data.tokenizers.lossless import byte_level_bpe, unigram_with_bytes
from dedloc_kit.learning.data.tokenizers.special_tokens import END_OF_TEXT, MASKED, UNK
from dedloc_kit.learning.data.tokenizers.unigram import SPECIAL, lower_case_unigram
from dedloc_kit.pretrained import CONFIG, TOKENIZER_FILES, load_pretrained_tokenizer

Tokenization = Literal["unigram", "bpe", "unigram-bytes"]
"""`unigram`: sahajBERT's, lower-case, for masked tasks. `bpe`, byte pair encoding over bytes, and `unigram-bytes`,
which falls back to bytes, change nothing: they are cased, know every character, and split digits one by one. llama.cpp
has a form of `bpe` alone."""
CHARACTERS = 50_000_000
"""What a tokenizer of 32,000 tokens is trained on by default."""
_DIFFERENT_SHARE = 25
"""One in so many characters may belong to a word that was not there before. The trainer's time and memory go by these:
19 million characters of Bengali have 0.8 million of them and take 0.6 GB, and 2 million (the default's bound) of
random letters 1 GB, of Bengali without spaces more than 2 GB."""
_MAX_WORD = 1_000
_WORDS_AT_ONCE = 1_000


def training_text(
    documents: Iterator[str], characters: int, seed: int, tokenization: Tokenization = "unigram"
) -> Iterator[str]:
    """Pieces of at most a megabyte for `train_tokenizer`, about `characters` in all, however the documents look.

    Of a document longer than 1 % of that it takes an excerpt of this length from a random place, so that none
    dominates; words of more than 1,000 characters (there are no spaces in Thai) are cut. It ends sooner once a 25th of
    `characters` was in words not seen before, for they make the trainer's time and memory, or once the second half of
    what was read (and a thousandth of `characters`) had no new word in it: a small corpus repeats.
    """
    generator = np.random.default_rng(seed)
    excerpt = max(1, characters // 100)
    # sahajBERT's makes one space of every run of white space; the others learn how text is laid out.
    glue, words_of = (" ", rf"\S{{1,{_MAX_WORD}}}") if tokenization == "unigram" else ("", rf"\s*\S{{1,{_MAX_WORD}}}")
    find_words = re.compile(words_of).findall
    seen: set[str] = set()
    different = total = last_new = 0
    for document in documents:
        start = int(generator.integers(max(1, len(document) - excerpt + 1)))
        words = find_words(document[start : start + excerpt])
        for first in range(0, len(words), _WORDS_AT_ONCE):
            some = words[first : first + _WORDS_AT_ONCE]
            piece = glue.join(some)
            yield piece
            total += len(piece)
            new = set(map(str.lstrip, some)) - seen
            if new:
                seen |= new
                different += sum(map(len, new))
                last_new = total
            repeats = total - last_new >= max(last_new, characters // 1000)
            if repeats or total >= characters or different * _DIFFERENT_SHARE >= characters:
                return


def tokenization_of(task: TaskConfig, default: Tokenization) -> Tokenization:
    """How a tokenizer for this task is made, as the run says or by default; raises UserError if it cannot be."""
    chosen = task.options.get("tokenization", default)
    if chosen not in (known := get_args(Tokenization)):
        raise UserError(f"task.tokenization is {chosen!r:.80}; choose one of: {', '.join(known)}")
    return cast(Tokenization, chosen)


def train_tokenizer(
    texts: Iterator[str],
    vocabulary: int,
    folder: Path,
    tokenization: Tokenization = "unigram",
    special: Mapping[str, str] = MASKED,
) -> int:
    """Train a tokenizer and save it in a new folder; returns how many tokens it has.

    For masked tasks it puts a text as `[CLS] A [SEP]` and a pair as `[CLS] A [SEP] B [SEP]`; for causal ones it begins
    with the end-of-text token, as each document does that such a model learns from. The same texts give the same
    files, byte for byte. Few texts may give fewer tokens than `vocabulary` asks for.

    With `bpe` and `unigram-bytes` every text comes back exactly from its tokens.

    `unigram` folds case but keeps accents, splits digits and punctuation. A text comes back from its tokens in
    normalized form, without a space at its front, if all its characters were in `texts`. Normalized (NMT, NFKC, white
    space, lower case) means: control characters except NUL are dropped; every run of white space is one space, and so
    are the zero-width space, joiner and non-joiner, the byte order mark, U+FFFD and U+2581; compatibility forms are
    replaced (`½` by `1⁄2`). Any other character becomes `[UNK]`, as in sahajBERT's: on held-out Bengali one token in
    77,000, which is not worth the 256 tokens that falling back to bytes would cost.

    This is how texts are read (`text.plain`): called by itself, the tokenizer takes `[MASK]` in a text for its mask.

    :param special: which special tokens it is to have, such as `Task.special_tokens`
    Raises UserError if the folder exists already, the texts hold more different characters than the vocabulary has
    room for, or the kind does not suit the task.
    """
    from transformers import PreTrainedTokenizerFast

    if tokenization == "unigram":
        if "mask_token" not in special:
            raise UserError('task.tokenization "unigram" loses case and is for masked tasks; choose "bpe"')
        special = {**special, "unk_token": UNK}
    with new_folder(folder) as temporary:
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=_trained(texts, vocabulary, tokenization, special),
            **special,
            model_input_names=[
                "input_ids",
                *(["token_type_ids"] if tokenization == "unigram" else []),
                "attention_mask",
            ],
            clean_up_tokenization_spaces=False,  # it would join " ," to ","
        )
        wrapped.save_pretrained(temporary)
    return len(wrapped)


def _trained(
    texts: Iterator[str], vocabulary: int, tokenization: Tokenization, special: Mapping[str, str]
) -> Tokenizer:
    tokens = list(dict.fromkeys(special.values()))
    try:
        match tokenization:
            case "unigram":
                tokenizer, empty = lower_case_unigram(texts, vocabulary), len(SPECIAL)
            case "bpe":
                tokenizer, empty = byte_level_bpe(texts, vocabulary, tokens), len(tokens) + 256
            case "unigram-bytes":
                tokenizer, empty = unigram_with_bytes(texts, vocabulary, tokens), len(tokens) + 256
    except UserError:  # the texts themselves have failed
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise UserError(
            f"no tokenizer of {vocabulary} tokens can be trained ({error}); change task.vocab_size"
        ) from error
    if tokenizer.get_vocab_size() <= empty:
        raise UserError("there is no text to train a tokenizer on; correct the run's data")
    if (cls := special.get("cls_token")) and (sep := special.get("sep_token")):
        around, single, pair = [cls, sep], f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"
    else:
        around, single, pair = [END_OF_TEXT], f"{END_OF_TEXT} $A", f"{END_OF_TEXT} $A $B:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, tokenizer.token_to_id(token)) for token in around]
    )
    return tokenizer


def load_tokenizer(name: str) -> Any:
    """A fast tokenizer of transformers from a folder or the Hub; raises UserError if there is none.

    :param name: an absolute path, `OWNER/NAME`, or `OWNER/NAME@REVISION`, which stays the same whatever is pushed later
    """
    hint = "make one with: dedloc prepare tokenizer RUN.toml"
    folder = tokenizer_files(name, (*TOKENIZER_FILES, CONFIG))
    if not folder.is_dir():
        raise UserError(f"the tokenizer {name} does not exist; {hint}")
    try:
        tokenizer = load_pretrained_tokenizer(folder)
    except Exception as error:  # of a damaged file transformers raises anything
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"the tokenizer {name} cannot be loaded ({said[0][:200]}); {hint}") from None
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer {name} has no fast form (tokenizer.json); {hint}")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes one up for a model that has none
        raise UserError(f"the tokenizer {name} has no tokens; {hint}")
    return tokenizer
