import pytest
import torch

from dedloc_kit.learning.tasks.text.common import evaluating


@pytest.mark.parametrize(
    ("half", "computed"),
    [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32), (None, torch.float32)],
)
def test_evaluations_are_in_bfloat16_where_training_is_and_never_in_float16(
    half: torch.dtype | None, computed: torch.dtype
) -> None:
    model = torch.nn.Linear(2, 2)
    with evaluating(model, lambda _: half) as device:
        assert device.type == "cpu"
        assert not model.training
        scores = model(torch.ones(1, 2))
        assert scores.dtype is computed
        assert not scores.requires_grad
    assert model.training
    assert model(torch.ones(1, 2)).dtype is torch.float32
