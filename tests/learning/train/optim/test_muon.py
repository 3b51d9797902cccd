"""Muon takes hidden matrices, AdamW the rest; only for what a peer does by itself."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer, Shape
from dedloc_kit.learning.train.optim.build import local_optimizer

CONFIG = OptimizerConfig(name="muon", learning_rate=0.1, warmup_steps=0, weight_decay=0.0)
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="of PyTorch 2.9")


class Words(nn.Module):
    """Ten words at six positions, of six channels; the output layer is not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.positions = nn.Embedding(6, 6)
        self.hidden = nn.Linear(6, 6)
        self.words = nn.Linear(6, 10, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.words


def moved_by_adamw(model: nn.Module) -> dict[str, bool]:
    """Of each parameter whether AdamW takes its first step: that is the rate, in each place."""
    torch.manual_seed(0)
    optimizer = local_optimizer(CONFIG, [{"params": list(model.parameters()), "weight_decay": 0.0}], model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter).sign()  # of one size: epsilon shows nowhere
    optimizer.step()
    steps = {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}
    return {name: torch.allclose(step.abs(), torch.tensor(0.1), rtol=1e-3) for name, step in steps.items()}


@needs_muon
def test_a_hidden_matrix_is_turned_orthogonally_and_words_and_biases_as_adamw_does() -> None:
    torch.manual_seed(0)
    model = Words()
    optimizer = local_optimizer(CONFIG, [{"params": list(model.parameters()), "weight_decay": 0.0}], model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    moved = {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}
    # AdamW's first step is the rate, in each place.
    for name in ("embedding.weight", "positions.weight", "words.weight", "hidden.bias"):
        assert moved[name].abs() == pytest.approx(torch.full_like(moved[name], 0.1), rel=1e-3)
    # Orthogonal but for what five Newton-Schulz steps leave, and as large as a step of AdamW is usually.
    singular = torch.linalg.svdvals(moved["hidden.weight"]) / (0.1 * 0.2 * 6**0.5)
    assert 0.5 < float(singular.min()) <= float(singular.max()) < 1.4


@needs_muon
@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_told_by_their_modules_where_hidden_matrices_have_the_same_shapes(tied: bool) -> None:
    sizes = {"n_embd": 16, "n_positions": 16, "vocab_size": 64, "n_layer": 1, "n_head": 2}  # c_proj as wpe and wte
    found = moved_by_adamw(GPT2LMHeadModel(GPT2Config(**sizes, tie_word_embeddings=tied)))
    matrices = {name for name in found if ".h." in name and "ln_" not in name and name.endswith("weight")}
    assert len(matrices) == 4
    assert {name for name, adamw in found.items() if not adamw} == matrices


@needs_muon
def test_output_layers_of_a_model_that_draws_are_no_hidden_matrices() -> None:
    shape = Shape(
        tokens=12, codes=16, caption=4, side=2, width=16, heads=2, shared=1, attention=("full",), kernel=3, tied=False
    )
    found = moved_by_adamw(DrawingTransformer(shape))
    assert found["text_output.weight"]
    assert found["code_output.weight"]
    assert not found["blocks.0.merged.weight"]


@needs_muon
def test_a_rate_that_is_set_holds_for_both_parts_and_each_group_keeps_its_weight_decay() -> None:
    model = Words()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    groups = [{"params": matrices, "weight_decay": 0.5}, {"params": [model.hidden.bias], "weight_decay": 0.0}]
    optimizer = local_optimizer(CONFIG, groups, model)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        left = 1.0 if name == "hidden.bias" else 1 - 0.01 * 0.5
        torch.testing.assert_close(parameter.detach(), left * before[name])


def test_where_torch_has_no_muon_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    model = Words()
    with pytest.raises(UserError, match=r"Muon, which PyTorch has from 2.9 on.*pip install --upgrade 'torch>=2.9'"):
        local_optimizer(CONFIG, [{"params": list(model.parameters()), "weight_decay": 0.0}], model)
