"""`dedloc export`, whatever it is given and whatever happens meanwhile."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dedloc_kit.errors import UserError
from dedloc_kit.export.export import export
from dedloc_kit.export.folder import NotForPeople, as_folder
from dedloc_kit.export.source import Trained, find
from dedloc_kit.learning.train.state.state import TrainingState
from tests.commands import Running, assert_refused, dedloc
from tests.export.runs import LedRun
from tests.export.written import HALF
from tests.loopback_hub import LoopbackHub
from tests.swarm.harness import wait_until
from tests.text_runs import text_run, write_text
from tests.tiny import tiny_run

MODULE = "tests.export.written"


@pytest.fixture
def led(tmp_path: Path) -> LedRun:
    """A run that writes text, after a step."""
    write_text(tmp_path)
    led = LedRun(tmp_path / "run", text_run(tmp_path, "causal"))
    led.step()
    return led


def same(folder: Path, led: LedRun) -> bool:
    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = led.weights()
    return all(torch.equal(each, weights[name]) for name, each in model.named_parameters())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_model_of_a_step_loads_with_its_tokenizer_and_its_card(led: LedRun, tmp_path: Path) -> None:
    for _ in range(2):
        led.step()
    out = tmp_path / "deep" / "out"
    export(str(led.folder), out, "transformers", step=3)
    assert same(out, led)
    assert AutoTokenizer.from_pretrained(out)("the river").input_ids[0] == led.task.tokenizer.bos_token_id  # type: ignore[attr-defined]
    card = (out / "README.md").read_text()
    assert "global step 3 of 10; 192 samples went into it" in card
    assert 'model="./out"' in card
    assert "<tr><td>Asha</td><td>192</td><td>3</td></tr>" in card
    assert str(tmp_path) not in "".join(path.read_text() for path in out.iterdir() if path.suffix in (".md", ".json"))
    (out / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    export(str(led.checkpoints.path(1)), out, "transformers")
    card = (out / "README.md").read_text()
    assert "global step 1 of 10; 64 samples went into it" in card
    assert "license: cc-by-4.0" in card, "what its owner put at the head of the card stays"
    assert names(out.parent) == ["out"]


def test_a_run_may_go_on_meanwhile(tmp_path: Path) -> None:
    led = LedRun(tmp_path / "run", tiny_run(), MODULE)
    led.step()
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            led.step(loss=1.0 / (led.state.step + 1))

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for number in range(20):
            out = tmp_path / str(number)
            export(str(led.folder), out, "transformers", task_module=MODULE)
            assert "weights.json" in names(out)
    finally:
        over.set()
        thread.join()


def test_what_cannot_be_written_leaves_nothing_and_the_earlier_export_stays(led: LedRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for there in (False, True):
        if there:
            export(str(led.folder), out, "transformers")
        led.step()
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            with pytest.raises(UserError, match=r"^[^\n]*/out cannot be written \([^\n]*\); make room on the disk"):
                export(str(led.folder), out, "transformers")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert out.exists() == there
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert "global step 2 of" in (out / "README.md").read_text()


def test_what_is_no_place_for_an_export_is_one_line_before_anything_is_read(tmp_path: Path) -> None:
    for out in (tmp_path, Path(__file__)):
        (tmp_path / "mine").touch()
        with pytest.raises(UserError, match=r"holds something else|is no folder"):
            export("nowhere", out, "transformers")
    with pytest.raises(UserError, match=r"model\.gguf will be a folder, with the file and what ollama needs; name it"):
        export("nowhere", tmp_path / "model.gguf", "gguf")


def test_a_run_that_trains_nothing_for_people_is_one_line(tmp_path: Path) -> None:
    led = LedRun(tmp_path / "run", tiny_run(), "tests.tiny")
    led.step()
    with pytest.raises(
        NotForPeople, match=r"^the task 'tiny' trains no model that is used without dedloc_kit; use its"
    ):
        export(str(led.folder), tmp_path / "out", "transformers", task_module="tests.tiny")
    with pytest.raises(UserError, match=r"^there is no task 'tiny'"):
        export(str(led.folder), tmp_path / "out", "transformers")
    assert names(tmp_path) == ["run"]


def test_without_the_runs_tokenizer_its_own_model_folder_has_one_or_it_is_named(
    led: LedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(str(led.folder), tmp_path / "one", "transformers")
    monkeypatch.setenv("DEDLOC_HOME", str(tmp_path / "another machine"))
    with pytest.raises(UserError, match=r"causal.*--data"):
        export(str(led.folder), tmp_path / "out", "transformers")
    export(str(led.folder), tmp_path / "two", "transformers", data={"causal": tmp_path / "causal"})
    export(str(led.folder), led.folder / "model", "transformers", data={"causal": tmp_path / "causal"})
    export(str(led.folder), tmp_path / "three", "transformers")
    (first, second, third) = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.name != "README.md"}
        for name in ("one", "two", "three")
    )
    assert first == second == third


def test_as_a_folder_a_model_is_there_for_as_long_as_it_is_used(led: LedRun, tmp_path: Path) -> None:
    source = find(str(led.folder))
    with as_folder(source, beside=tmp_path) as folder:
        assert folder.parent == tmp_path
        assert same(folder, led)
    assert not folder.exists()
    assert isinstance(source, Trained)
    export(str(led.folder), led.folder / "model", "transformers")
    with as_folder(source) as folder:
        assert folder == led.folder / "model", "it is written already"
    led.step()
    with as_folder(find(str(led.folder))) as folder:
        assert folder != led.folder / "model", "that is of another step"
        assert same(folder, led)
    with as_folder(find(str(led.folder / "model"))) as folder:
        assert folder == led.folder / "model"
    said = r"^/nowhere cannot be written \(No such file or directory\); make room on the disk"
    with pytest.raises(UserError, match=said), as_folder(find(str(led.folder)), beside=Path("/nowhere")):
        pass


def test_a_model_of_the_hub_is_copied_and_one_that_is_here_is_not(
    led: LedRun, tmp_path: Path, hub: LoopbackHub
) -> None:
    export(str(led.folder), tmp_path / "here", "transformers")
    files = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    hub.commits["us/model"] = [{**files, "code.py": b"evil()", "training_state.safetensors": b""}]
    out = tmp_path / "out"
    assert export("us/model", out, "transformers").startswith(f"{out} is the model model of the Hub; load it with")
    assert same(out, led)
    assert not any(path.is_symlink() for path in out.iterdir())
    assert {"code.py", "training_state.safetensors", "run.json"}.isdisjoint(names(out))
    with pytest.raises(UserError, match=r"/here is a model of transformers already; use it as it is, or choose --to"):
        export(str(tmp_path / "here"), tmp_path / "other", "transformers")


def test_without_the_package_gguf_one_line_says_what_to_install(
    led: LedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"^--to gguf needs the package gguf; run pip install 'dedloc_kit\[gguf\]'$"):
        export(str(led.folder), tmp_path / "out", "gguf")


@pytest.mark.soak
def test_the_command_says_what_it_has_written_and_one_that_is_killed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = LedRun(tmp_path / "run", tiny_run(), MODULE)
    led.step()
    out = tmp_path / "out"
    asked = ("export", led.folder, out, "--task-module", MODULE)

    def half_written() -> bool:
        return any(tmp_path.glob(f".out-*/{HALF}"))

    monkeypatch.setenv("WRITTEN_HOLD", str(tmp_path / "go on"))
    for end, left in ((signal.SIGTERM, 0), (signal.SIGKILL, 1)):
        command = Running(asked, tmp_path)
        try:
            wait_until(half_written, "nothing is written", 120.0)
            os.kill(command.process.pid, end)
            command.process.wait(60.0)
        finally:
            command.close()
        assert not out.exists()
        assert len(list(tmp_path.glob(".out-*"))) == left
    (tmp_path / "go on").touch()
    done = dedloc(*asked, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.strip()
        == f"{out} is the model of {led.run.run_id} after global step 1; README.md says how to use it"
    )
    assert done.stderr == ""
    assert json.loads((out / "weights.json").read_text())
    assert_refused(dedloc("export", led.folder, tmp_path, "--step", "1", folder=tmp_path), "holds something else")
    assert_refused(dedloc("export", led.folder, "x", "--step", "7", folder=tmp_path), "it keeps: 1")
    assert_refused(dedloc("export", led.folder, "x", "--type", "f16", folder=tmp_path), "--type is for --to gguf")
    assert_refused(dedloc("export", "no/where\u200b", "x", folder=tmp_path), "no/where")


PEAK = """if True:
    import sys
    from pathlib import Path
    from dedloc_kit.export.export import export
    from tests.peak import Peak
    small, large, out = sys.argv[1:]
    export(small, Path(out) / "small", "transformers")  # what is imported takes memory, too
    peak = Peak()
    peak.start()
    export(large, Path(out) / "large", "transformers")
    print(peak.end())
"""


@pytest.mark.soak
def test_an_export_takes_hardly_more_memory_than_the_model(led: LedRun, tmp_path: Path) -> None:
    model = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
    run = text_run(tmp_path, "causal", model=model)
    large = LedRun(tmp_path / "large", run.model_copy(update={"name": "large"}))
    assert isinstance(large.state, TrainingState)
    large.step()
    size = 4 * large.state.layout.size
    assert size > 1.5e8
    told = subprocess.run(
        [sys.executable, "-c", PEAK, led.folder, large.folder, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    written = load_file(tmp_path / "out" / "large" / "model.safetensors")
    weights = large.weights()
    assert all(torch.equal(each, weights[name]) for name, each in written.items())
    assert int(told.stdout) < 1.3 * size
