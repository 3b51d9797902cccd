"""A held-out loss in parts is that of the whole."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dedloc_kit.coordinator.distributed_eval import evaluated_in_parts
from dedloc_kit.learning.task import Batch, create_task
from tests.text_runs import text_run, write_text


def test_parts_of_held_out_batches_make_the_same_evaluation(tmp_path: Path) -> None:
    write_text(tmp_path)
    task = create_task(text_run(tmp_path, "causal", evaluation_samples=1000))
    model, sizes = task.model().eval(), list[int]()
    whole = task.evaluate(model)

    @torch.no_grad()
    def losses(parts: Sequence[Batch]) -> list[float]:
        sizes.extend(len(part["labels"]) for part in parts)
        return [task.loss(model, task.prepare(part), 0).mean.item() for part in parts]

    found = evaluated_in_parts(task, 3, losses)
    assert max(sizes) == 3
    assert found.loss == pytest.approx(whole.loss, abs=1e-5)
    assert found.metrics == pytest.approx(whole.metrics, rel=1e-5)
