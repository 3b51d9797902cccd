"""The newest best model for people lies in the run's folder, and whatever happens to it the run goes on."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from dedloc_kit.config.parts import PipelineConfig
from dedloc_kit.coordinator.model_folder import ModelFolder
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.export.source import Exported, Trained, find
from dedloc_kit.learning.task import Task
from tests.export.runs import LedRun
from tests.export.written import Written
from tests.swarm.harness import wait_until
from tests.text_runs import mixed, text_run, write_text
from tests.tiny import TinyTask, tiny_run


class Kept:
    """A run whose model is kept."""

    def __init__(self, led: LedRun, task: Task) -> None:
        self.led, self.task, self.events = led, task, list[AnyEvent]()
        self.out = led.folder / "model"

    @contextmanager
    def keeping(self, name: str | None = None) -> Iterator[ModelFolder]:
        led = self.led
        folder = ModelFolder(led.folder, led.state, self.task, led.ledger, self.events.append, name)
        try:
            yield folder
        finally:
            folder.close(60.0)
        assert not any(thread.name == "model folder" for thread in threading.enumerate()), "its thread has ended"

    def step(self) -> int:
        written = Exported.of(self.out)
        return 0 if written is None else written.step

    def sums(self) -> list[float]:
        found: list[float] = json.loads((self.out / "weights.json").read_text())
        return found


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    run = tiny_run()
    return Kept(LedRun(tmp_path / "run", run, module="tests.tiny"), Written(run))


def test_the_best_model_is_kept_and_the_newest_one_while_none_is_measured(kept: Kept) -> None:
    led = kept.led
    led.step()
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
        wait_until(lambda: kept.step() == 1, "the first one was not written")
        best = [each.sum().item() for each in led.weights().values()]
        assert kept.sums() == pytest.approx(best)
    led.step(loss=1.0)
    best = [each.sum().item() for each in led.weights().values()]
    led.step(loss=2.0)
    led.step()
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    assert kept.step() == 2
    assert kept.sums() == pytest.approx(best)
    card = (kept.out / "README.md").read_text()
    assert "global step 2 of" in card
    assert "128 samples went into it" in card, "without those of the steps after it"
    assert "load('./model')" in card
    assert "--resume" not in card, "the training state is not beside it"
    assert sorted(path.name for path in kept.out.iterdir()) == [
        *("README.md", "contributors.json", "curve.svg", "exported.json", "run.json", "weights.json")
    ]
    found = find(str(led.folder))
    assert found.finished == kept.out  # type: ignore[union-attr]
    assert sorted(path.name for path in led.folder.iterdir() if path.name.startswith(".")) == []


def test_after_a_rewind_the_same_step_is_written_again(kept: Kept) -> None:
    led = kept.led
    led.step()
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    before, written = kept.sums(), (kept.out / "README.md").stat().st_mtime_ns
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    assert (kept.out / "README.md").stat().st_mtime_ns == written, "the same model is not written again"
    tensors, info = led.state.copy()
    led.checkpoints.save({n: t * 2 for n, t in tensors.items()}, info.model_copy(update={"rounds": ("ffff",)}))
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    assert kept.sums() == pytest.approx([2 * value for value in before])


def test_what_the_organizer_puts_at_the_head_of_the_card_stays(kept: Kept) -> None:
    led = kept.led
    led.step()
    with kept.keeping("us/model") as folder:
        folder.look(led.checkpoints)
    card = kept.out / "README.md"
    assert "load('us/model')" in card.read_text()
    card.write_text("---\nlicense: cc-by-4.0\n---\n")
    led.step()
    with kept.keeping("us/model") as folder:
        folder.look(led.checkpoints)
    assert kept.step() == 2
    assert "license: cc-by-4.0" in card.read_text()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a\nbug"), MemoryError()])
def test_whatever_fails_is_one_warning_and_the_earlier_model_stays(kept: Kept, error: Exception) -> None:
    led = kept.led
    led.step()
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    led.step()
    assert isinstance(kept.task, Written)
    kept.task.fails = error
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
        wait_until(lambda: len(kept.events) == 1, "nobody was told")
    (warned,) = kept.events
    assert isinstance(warned, Warned)
    assert "\n" not in warned.text
    assert re.fullmatch(
        r"the model for people is not renewed: (/.* cannot be written \(No space .*|a|MemoryError)", warned.text
    )
    assert kept.step() == 1
    kept.task.fails = None
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    assert kept.step() == 2


def test_a_checkpoint_that_has_gone_and_a_folder_of_somebody_elses_harm_nothing(kept: Kept) -> None:
    led = kept.led
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
        led.step()
        led.checkpoints.path(1).unlink()
        folder.look(led.checkpoints)
    assert not kept.out.exists()
    led.step()
    kept.out.mkdir()
    (kept.out / "mine").write_text("mine")
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    assert [path.name for path in kept.out.iterdir()] == ["mine"]
    assert len(kept.events) == 1
    with kept.keeping():
        pass  # nothing was ever wanted


def test_of_a_task_that_writes_nothing_for_people_there_is_no_folder(kept: Kept) -> None:
    kept.task = TinyTask(kept.led.run)
    kept.led.step()
    with kept.keeping() as folder:
        folder.look(kept.led.checkpoints)
    assert not kept.out.exists()
    assert kept.events == []


@pytest.mark.parametrize("divided", [None, "stages", "experts"])
def test_the_model_of_a_run_in_pieces_is_kept_whole(divided: str | None, tmp_path: Path) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal", model={"tie_word_embeddings": False})
    if divided == "experts":
        run = mixed(run)
    if divided == "stages":
        exact = run.averaging.model_copy(update={"overlap": False})
        run = run.model_copy(update={"pipeline": PipelineConfig(stages=2), "averaging": exact})
    led = LedRun(tmp_path / "run", run)
    led.step()
    expected = led.task.evaluate(led.state.snapshot()[0]).loss
    kept = Kept(led, led.task)
    with kept.keeping() as folder:
        folder.look(led.checkpoints)
    assert kept.events == []
    assert kept.step() == 1
    model = AutoModelForCausalLM.from_pretrained(kept.out)
    if divided != "experts":
        assert led.task.evaluate(model).loss == pytest.approx(expected, abs=1e-5)
    found = find(str(led.folder))
    assert isinstance(found, Trained)
    assert led.task.evaluate(found.model(led.task)).loss == pytest.approx(expected, abs=1e-5)
