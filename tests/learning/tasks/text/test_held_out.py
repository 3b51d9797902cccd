"""An evaluation names what it was measured on, so that only equal things are compared."""

import re
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.coordinator.durability import LastingRecord
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.state.checkpoint import Best
from dedloc_kit.records.evaluation import Evaluation
from tests.text_runs import text_run, write_text


@pytest.mark.parametrize("name", ["causal", "encoder"])
def test_a_file_that_is_added_before_the_held_out_one_changes_what_the_evaluation_names(
    name: str, tmp_path: Path
) -> None:
    texts = write_text(tmp_path)
    run = text_run(tmp_path, name)

    def hashed() -> str:
        task = create_task(run)
        return task.evaluate(task.model()).held_out

    before = hashed()
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert hashed() == before
    later = pyarrow.table({"text": texts[:40]})
    parquet.write_table(later, tmp_path / "corpus/train-00009-of-00001.parquet")
    assert hashed() == before, "it is no held-out file"
    parquet.write_table(later, tmp_path / "corpus/test-0000-more.parquet")
    assert hashed() != before


def test_on_other_held_out_data_the_curve_and_the_best_checkpoint_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lasting = LastingRecord(tmp_path, keep=3)
    lasting.begin(None)
    old, new = "a" * 64, "b" * 64

    def measured(step: int, loss: float, held_out: str) -> None:
        lasting.evaluation(step, Evaluation(loss=loss, held_out=held_out), float(step))
        lasting.checkpoints.path(step).touch()
        lasting.checkpoints.rate(step, loss)

    measured(1, 3.0, "")  # of before it was kept
    for step, loss in ((2, 2.0), (3, 1.0)):
        measured(step, loss, old)
    assert lasting.checkpoints.best == Best(step=3, loss=1.0)
    assert not caplog.records
    measured(4, 2.5, "")  # by the word of others
    measured(5, 2.4, new)
    measured(6, 2.3, new)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the held-out data is no longer what it was before step 5"
    ]
    assert [point.step for point in lasting.ledger.evaluations()] == [5, 6]
    assert lasting.checkpoints.best == Best(step=6, loss=2.3)
    lasting.close()
    reopened = LastingRecord(tmp_path, keep=3)
    assert not reopened.ledger.measured_on_other(Evaluation(loss=1.0, held_out=new))
    assert reopened.ledger.measured_on_other(Evaluation(loss=1.0, held_out=old))
    reopened.close()
