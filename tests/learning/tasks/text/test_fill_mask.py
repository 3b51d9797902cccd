"""One word of a sentence is hidden, the rest is what the model and the viewer see."""

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.pairs import PairBuilder
from dedloc_kit.learning.data.text.tokens import DocumentTokenizer
from dedloc_kit.learning.data.tokenizers.special_tokens import CLS, MASK, PAD, SEP, UNK
from dedloc_kit.learning.data.tokenizers.unigram import SPECIAL
from dedloc_kit.learning.tasks.text.fill_mask import FillMaskSamples

PIECES = ["▁a", "▁the", "▁boat", "▁river", "▁str", "eam", "▁on", ",", ".", "▁", "(", "town", ")"]
TEXT = "a boat on the river, on (town). the stream on a river."


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in (*SPECIAL, *PIECES)], unk_id=1))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, unk_token=UNK, cls_token=CLS, sep_token=SEP, mask_token=MASK
    )


def hidden(tokenizer: Any, seed: int, text: str = TEXT, sequence_length: int = 32) -> FillMaskSamples:
    documents = DocumentTokenizer(tokenizer, "en").documents([text])
    arrays = next(PairBuilder(tokenizer, sequence_length, 0.3).batches(documents, 1, np.random.default_rng(0)))
    return FillMaskSamples(arrays, tokenizer, 5, np.random.default_rng(seed))


def perfect(samples: FillMaskSamples, vocabulary: int) -> torch.Tensor:
    """The scores of a model that knows every hidden token."""
    labels = samples.arrays["labels"]
    return torch.nn.functional.one_hot(torch.from_numpy(labels[labels != IGNORED]), vocabulary).float()


def test_a_whole_word_is_hidden_and_everything_else_can_be_seen(tokenizer: Any) -> None:
    words = set()
    for seed in range(20):
        samples = hidden(tokenizer, seed)
        (sample,) = samples.filled(perfect(samples, len(tokenizer)))
        assert sample.guess == sample.truth
        assert f"{sample.before}{sample.truth}{sample.after}" in (
            "a boat on the river, on (town).",
            "the stream on a river.",
        )
        ids, labels = samples.arrays["input_ids"][0], samples.arrays["labels"][0]
        assert (ids == tokenizer.mask_token_id).sum() == (labels != IGNORED).sum()
        words.add(sample.truth)
    assert words == {"boat", "river", "stream"}, "no particle, no sign, and words of several tokens too"


def test_a_wrong_guess_stands_beside_the_truth(tokenizer: Any) -> None:
    samples = hidden(tokenizer, 0)
    scores = torch.zeros(len(perfect(samples, len(tokenizer))), len(tokenizer))
    scores[:, tokenizer.convert_tokens_to_ids("▁the")] = 1.0
    (sample,) = samples.filled(scores)
    assert set(sample.guess.split()) == {"the"}
    assert sample.truth in ("boat", "river", "stream")


def test_the_text_around_a_word_is_cut_where_it_is_long(tokenizer: Any) -> None:
    long = ". ".join(["the boat on a river on the stream on a boat on the river on a stream"] * 4)
    samples = hidden(tokenizer, 3, long, sequence_length=128)
    (sample,) = samples.filled(perfect(samples, len(tokenizer)))
    assert sample.before.startswith("… ")
    assert sample.after.endswith(" …")
    assert len(f"{sample.before}{sample.truth}{sample.after}".split()) < 40


def test_a_sample_without_a_suitable_word_is_left_out(tokenizer: Any) -> None:
    assert len(hidden(tokenizer, 0, "on the. a. on a.")) == 0
