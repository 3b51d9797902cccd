"""What a run has to beat is measured once."""

import logging
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.baseline_eval import measure_start
from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import VocabularyTransfer
from dedloc_kit.ledger import Ledger, StartPoint
from tests.tiny import TinyTask, tiny_run


class GoingOn(TinyTask):
    """Goes on from a model; counts how often that is measured."""

    measured = 0

    def __init__(self, run: RunConfig, losses: list[float | None]) -> None:
        super().__init__(run)
        self._losses = losses

    def first_model(self) -> nn.Module:
        return self.model()

    def vocabulary_transfer(self) -> VocabularyTransfer:
        return VocabularyTransfer(1, 0, 0)

    def start_loss(self) -> float | None:
        self.measured += 1
        if not self._losses:
            raise UserError("the folder is gone")
        return self._losses.pop(0)


def run_from(start: str, **sections: Any) -> RunConfig:
    return tiny_run(task={"name": "tiny", "init_from": start}, **sections)


def test_a_start_is_measured_once_for_each_configuration_also_when_the_coordinator_starts_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run = run_from("us/model@" + "0" * 40)
    task = GoingOn(run, [4.5])
    for _ in range(2):
        ledger = Ledger(tmp_path / "ledger.sqlite")
        measure_start(run, task, ledger)
        assert ledger.start() == StartPoint(run.run_id, "us/model", 4.5)
        ledger.close()
    assert task.measured == 1
    ledger = Ledger(tmp_path / "ledger.sqlite")
    changed = run_from("/of/this/machine")
    measure_start(changed, GoingOn(changed, [3.5]), ledger)
    assert ledger.start() == StartPoint(changed.run_id, "machine", 3.5)
    assert caplog.messages == []
    for losses, warnings in (([None], []), ([], ["the folder is gone"])):  # two vocabularies that do not compare; gone
        ledger.record_start(StartPoint("old-0", "us/old", 1.0))
        measure_start(run, GoingOn(run, list(losses)), ledger)
        assert ledger.start() is None, "what is known of another configuration says nothing of this one"
        assert [message.rpartition(": ")[2] for message in caplog.messages] == warnings


def test_a_run_that_begins_untrained_or_holds_nothing_out_has_nothing_to_beat(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    run = tiny_run()
    measure_start(run, TinyTask(run), ledger)
    blind = run_from("us/model@" + "0" * 40, data={"train": [{"dataset": "none/none"}]})
    task = GoingOn(blind, [4.5])
    measure_start(blind, task, ledger)
    assert (ledger.start(), task.measured) == (None, 0)
