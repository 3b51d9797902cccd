"""A tiny model in this process with a user's adapter: what comes through servers has to be the same."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.blocks.adapters import adapted
from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.adapters.lora import LoraConfig, TrainableAdapter, new_adapter
from dedloc_kit.blocks.ends import ends
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.span import CachedSpan, Span

TEXT = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9], [11, 4, 8, 3, 11, 4, 8, 3]])
MASK = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]])
BOTH = LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj", "mlp.down_proj"), prompt_tokens=3)


def adapter_for(whole: Any) -> TrainableAdapter:
    """One that changes much, with LoRA and prompts."""
    adapter = new_adapter(BOTH, whole.config)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return adapter


def local(whole: Any, adapter: TrainableAdapter | None) -> Any:
    """The model with this adapter in all its calls."""
    span, tensors = Span.of(whole, 0, whole.config.num_hidden_layers), whole.state_dict()
    names = span.layout.outside(tensors)
    return ends(whole.config, {name: tensors[name] for name in names}, lambda length: _Layers(span, adapter))


def trained(model: Any, adapter: TrainableAdapter, soft: torch.nn.Parameter) -> Tensor:
    """The loss with a soft prompt in front of the text, after its gradients have gone back."""
    given = torch.cat([soft.expand(2, -1, -1), model.get_input_embeddings()(TEXT).detach()], 1)
    mask = torch.cat([torch.ones(2, soft.shape[1], dtype=torch.long), MASK], 1)
    labels = torch.cat([torch.full((2, soft.shape[1]), -100), TEXT.where(MASK.bool(), -100)], 1)
    loss: Tensor = model(inputs_embeds=given, attention_mask=mask, labels=labels).loss
    for parameter in (soft, *adapter.parameters()):
        parameter.grad = None
    loss.backward()
    return loss.detach()


class _Layers:
    def __init__(self, span: Span, adapter: TrainableAdapter | None) -> None:
        # The parameters themselves, so that gradients reach them.
        used = None if adapter is None else Adapter(adapter.adapter().form, adapter.named)
        self._forward = partial(adapted.forward, span, adapter=used)
        self._past = CachedSpan(span, self._forward)

    def __call__(
        self, hidden: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: Past | None
    ) -> Tensor:
        if past is None:
            return self._forward(hidden, attention_mask, position_ids, None)
        return self._past(hidden, attention_mask, position_ids, past)

    def close(self) -> None: ...
