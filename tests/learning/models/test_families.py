"""Models of transformers by name: packed documents do not see each other, and what cannot be is refused in one line."""

from typing import Any

import pytest
import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.models.families import DECODERS, ENCODERS, Family, softcap

VOCABULARY = 60
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
FEW_HEADS = {**SMALL, "num_key_value_heads": 1}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}
NAMED = [
    (DECODERS, "llama", FEW_HEADS),
    (DECODERS, "qwen3", FEW_HEADS),
    (DECODERS, "gemma3", {**FEW_HEADS, **LAYERS, "sliding_window": 5, "final_logit_softcapping": 2.0}),
    (DECODERS, "gpt_neox", SMALL),
    (DECODERS, "gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 2}),
    (ENCODERS, "modernbert", {**SMALL, **LAYERS, "local_attention": 8}),
    (ENCODERS, "bert", SMALL),
    (ENCODERS, "deberta-v2", {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
]


def built(family: Family, architecture: str, values: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return family.build(family.config(architecture, values, TOKENS)).eval()


@pytest.mark.parametrize(("family", "architecture", "values"), NAMED, ids=[name for _, name, _ in NAMED])
def test_a_packed_document_is_what_it_is_alone(family: Family, architecture: str, values: dict[str, Any]) -> None:
    model = built(family, architecture, values)
    ids = torch.randint(2, VOCABULARY, (2, 48), generator=torch.Generator().manual_seed(0))
    lengths = [[20, 3, 25], [1, 40, 7]]
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
    with torch.no_grad():
        hidden = family.hidden(model, ids, positions)
        scores = model.get_output_embeddings()(family.output_inputs(model, hidden.flatten(0, 1)))
        cap = softcap(model)
        scores = scores if cap is None else cap * (scores / cap).tanh()
        alone = [
            model(input_ids=part[None]).logits[0]
            for row, cut in zip(ids, lengths, strict=True)
            for part in row.split(cut)
        ]
    torch.testing.assert_close(scores, torch.cat(alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "architecture", "values", "message"),
    [
        (DECODERS, "lama", {}, r"task.architecture 'lama' is none .* did you mean 'llama'\?"),
        (ENCODERS, "modern-bert", {}, r"did you mean 'modernbert'\?"),
        (ENCODERS, "qwen3", {}, 'a qwen3 is for the task causal; set task.name = "causal"'),
        (DECODERS, "modernbert", {}, 'a modernbert is for the task encoder; set task.name = "encoder"'),
        (DECODERS, "llama", {"hiden_size": 8}, r"task.model.hiden_size is not a known key of llama; .*'hidden_size'"),
        (DECODERS, "llama", {"vocab_size": 8}, "task.model.vocab_size is for the tokenizer to say; leave it out"),
        (
            DECODERS,
            "llama",
            {**SMALL, "hidden_size": "big"},
            "task.model cannot be used: .*hidden_size.*big.*; correct",
        ),
        (DECODERS, "llama", {**SMALL, "hidden_size": 33}, "task.model cannot be used: .*not a multiple"),
        (ENCODERS, "modernbert", {**SMALL, "hidden_activation": "swish2"}, "task.model cannot be used: .*swish2"),
        (
            DECODERS,
            "mamba",
            {"hidden_size": 32, "num_hidden_layers": 1},
            "mamba cannot be trained on packed .*see each",
        ),
        (DECODERS, "bert", {**SMALL}, "bert cannot be trained on packed documents .*; choose another"),
        (
            ENCODERS,
            "roberta",
            {**SMALL},
            r"roberta cannot be trained on packed .*; choose another, or a newer transformers than \d",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    family: Family, architecture: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        built(family, architecture, values)
    assert "\n" not in str(caught.value)


def test_without_values_a_model_is_small() -> None:
    decoder, encoder = DECODERS.config("gemma3", {}, TOKENS), ENCODERS.config("deberta-v2", {}, TOKENS)
    assert (decoder.model_type, decoder.hidden_size, decoder.num_hidden_layers) == ("gemma3_text", 768, 12)
    assert (decoder.head_dim, decoder.vocab_size, decoder.tie_word_embeddings) == (64, VOCABULARY, True)
    assert (encoder.hidden_size, encoder.num_hidden_layers, encoder.hidden_dropout_prob) == (768, 12, 0.0)
    assert ENCODERS.config("modernbert", {}, TOKENS).num_hidden_layers == 22
