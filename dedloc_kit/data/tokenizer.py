"""A tokenizer of one's own: trained on the run's texts, loaded by every peer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dedloc_kit.data.folder import new_folder
from dedloc_kit.errors import UserError

SPECIAL = PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"


def train_tokenizer(texts: Iterator[str], vocabulary: int, folder: Path) -> int:
    """Train a Unigram tokenizer as sahajBERT's and save it in a new folder; returns how many tokens it has.

    It folds case but keeps accents, splits digits and punctuation, and puts a pair as `[CLS] A [SEP] B [SEP]`. Few
    texts may give fewer tokens than `vocabulary` asks for. Raises UserError if the folder exists already or the texts
    hold more different characters than the vocabulary has room for.
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
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, tokenizer.token_to_id(CLS)), (SEP, tokenizer.token_to_id(SEP))],
    )
    return tokenizer


def load_tokenizer(name_or_path: str) -> Any:
    """A fast tokenizer of transformers from a folder or a Hub repository; raises UserError if there is none."""
    from transformers import AutoTokenizer

    hint = "make one with: dedloc tokenizer RUN.toml"
    path = Path(name_or_path).expanduser()
    local = path.exists() or path.is_absolute() or name_or_path.startswith((".", "~"))
    if local and not path.is_dir():
        raise UserError(f"the tokenizer {name_or_path} does not exist; {hint}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path) if local else name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"the tokenizer {name_or_path} cannot be loaded ({said[0][:200]}); {hint}") from None
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer {name_or_path} has no fast form (tokenizer.json); {hint}")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes one up for a model that has none
        raise UserError(f"the tokenizer {name_or_path} has no tokens; {hint}")
    return tokenizer
