"""The adapter that a user trains."""

import pytest
import torch

from dedloc_kit.blocks.adapters import adapted
from dedloc_kit.blocks.adapters.lora import LoraConfig, TrainableAdapter, new_adapter
from dedloc_kit.blocks.span import Span
from dedloc_kit.errors import UserError
from tests.blocks import tiny

pytestmark = pytest.mark.usefixtures("one_thread")
BOTH = LoraConfig(rank=4, alpha=2.0, target_modules=("q_proj", "mlp.down_proj"), prompt_tokens=3)


def test_a_new_one_has_all_that_was_asked_for_and_changes_nothing() -> None:
    model = tiny.model("Llama")
    adapter = new_adapter(BOTH, model.config).adapter()
    assert {name: tuple(tensor.shape) for name, tensor in adapter.tensors.items() if name.startswith("layers.3")} == {
        "layers.3.prompt": (3, 32),
        "layers.3.self_attn.q_proj.lora_A": (4, 32),
        "layers.3.self_attn.q_proj.lora_B": (32, 4),
        "layers.3.mlp.down_proj.lora_A": (4, 64),
        "layers.3.mlp.down_proj.lora_B": (32, 4),
    }
    assert len(adapter.tensors) == 5 * tiny.LAYERS
    assert adapter.form.scaling == 0.5
    span, hidden = Span.of(model, 0, tiny.LAYERS), torch.randn(1, 5, 32)
    adapter.form.check(span)
    assert torch.equal(adapted.forward(span, hidden, None, None, None, adapter), span(hidden, None, None))


def test_a_seed_stands_for_its_numbers_whatever_else_is_trained() -> None:
    config, name = tiny.config("Llama"), "layers.2.self_attn.q_proj.lora_A"
    alone = new_adapter(LoraConfig(rank=4, target_modules=("q_proj",)), config).named
    assert torch.equal(new_adapter(BOTH, config).named[name], alone[name])
    assert not torch.equal(new_adapter(BOTH, config, seed=1).named[name], alone[name])
    assert not torch.equal(alone["layers.1.self_attn.q_proj.lora_A"], alone[name])
    assert 0.9 / 32**0.5 < alone[name].abs().max() <= 1 / 32**0.5


def test_a_target_that_no_layer_has_is_told_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match=r"^no layer of gpt2 has a linear layer 'q_proj'; .* attn.c_attn, attn.c_proj,"):
        new_adapter(LoraConfig(target_modules=("c_attn", "q_proj")), tiny.config("GPT2"))
    with pytest.raises(UserError, match=r"no layer of llama has a linear layer 'proj'"):
        new_adapter(LoraConfig(target_modules=("proj",)), tiny.config("Llama"))


def test_a_configuration_that_trains_nothing_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^LoraConfig: nothing would be trained; give target_modules or prompt_tokens$"
    ):
        LoraConfig.parse({"rank": 4})


def test_training_by_the_gradients_of_a_span_lowers_the_loss() -> None:
    model = tiny.model("Llama")
    span, trained = Span.of(model, 0, tiny.LAYERS), new_adapter(BOTH, model.config)
    torch.manual_seed(0)
    hidden, wanted = torch.randn(2, 6, 32), torch.randn(2, 6, 32)
    optimizer, losses = torch.optim.Adam(trained.parameters(), lr=0.05), []
    for _ in range(20):
        adapter = trained.adapter()
        after = adapted.forward(span, hidden, None, None, None, adapter).detach().requires_grad_()
        loss = torch.nn.functional.mse_loss(after, wanted)
        losses.append(loss.item())
        loss.backward()
        assert after.grad is not None
        _, gradients = adapted.backward(span, hidden, None, None, adapter, after.grad)
        for name, parameter in trained.named.items():
            parameter.grad = gradients[name]
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


def test_its_parameters_are_float32_and_its_own() -> None:
    given = {"layers.0.prompt": torch.zeros(1, 32, dtype=torch.bfloat16)}
    trained = TrainableAdapter(given, 1.0)
    with torch.no_grad():
        trained.named["layers.0.prompt"].fill_(1.0)
    assert [parameter.dtype for parameter in trained.parameters()] == [torch.float32]
    assert not given["layers.0.prompt"].any()
    assert trained.adapter().tensors["layers.0.prompt"].all()
