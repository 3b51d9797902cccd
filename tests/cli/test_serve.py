"""`dedloc serve`, as its users run it: the commands of docs/serving.md."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedloc_kit.inference.model import AutoDistributedModelForCausalLM, tokenizer_of
from tests.commands import assert_refused, dedloc

DEADLINE = 240.0


@contextmanager
def serving(folder: Path, what: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """One server as long as this is entered; then it is interrupted, and leaves as it should."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dedloc_kit.cli", "serve", str(what), "--host", "127.0.0.1", *arguments],
        env={**os.environ, "DEDLOC_HOME": str(folder / "home")},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell lets what it starts in the background ignore interrupts, and so all that is started by that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, said
    finally:
        process.kill()


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return
    raise AssertionError(said)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_demo_of_a_model_that_writes_shows_how_it_learns_and_two_who_serve_it_go_on_with_a_sentence(
    tmp_path: Path,
) -> None:
    run, report = tmp_path / "run", tmp_path / "report.json"
    asked = ("--recipe", "gpt", "--steps", "15", "--volunteers", "1", "--no-browser", "--folder", run)
    trained = dedloc("demo", *asked, "--report", report, folder=tmp_path, deadline=4 * DEADLINE)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    result = json.loads(report.read_text())
    assert result["eval_loss_last"] < result["eval_loss_first"] - 0.5
    assert "after step 0 it writes: " in trained.stdout
    assert "after step 15 it writes: " in trained.stdout

    page = ("--dashboard-host", "127.0.0.1", "--port", "0", "--weights", "float32", "--name", "mine")
    with serving(tmp_path, run / "coordinator", "--span", "0:1", *page) as first:
        wait_for(first, "to serve:")
        invitation = tmp_path / "runs" / "serve-mine" / "invitation.json"
        layers = json.loads(invitation.read_text())["run"]["config"]["num_hidden_layers"]
        with serving(tmp_path, invitation, "--span", f"1:{layers}", "--weights", "float32") as second:
            wait_for(second, "serving the layers")
            model = AutoDistributedModelForCausalLM.from_pretrained(str(invitation), folder=tmp_path / "user")
            try:
                tokenizer = tokenizer_of(model)
                text = tokenizer("def add(", return_tensors="pt")
                deadline = time.monotonic() + DEADLINE
                answer = model.generate(**text, max_new_tokens=8, do_sample=False, eos_token_id=-1)
                assert answer.shape[1] == text["input_ids"].shape[1] + 8
                assert tokenizer.decode(answer[0]).strip()
                assert time.monotonic() < deadline
            finally:
                model.network.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.json",), ("there is no invitation at 'nowhere.json'",)),
        (("empty", "--client-mode"), ("has to be reached",)),
        (("empty", "--tls-cert", "a.pem"), ("--tls-key",)),
        (("empty", "--name", "N!"), ("--name N!", "lower-case")),
        (("empty",), ("config.json", "cannot be read")),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(dedloc("serve", *arguments, folder=tmp_path), *words)


def test_a_run_is_not_served_and_a_served_model_is_not_trained(tmp_path: Path) -> None:
    from dedloc_kit.serving.config import parse_serving
    from tests.invitations import invited
    from tests.serving.test_config import CONFIG

    (tmp_path / "invitation.json").write_text(invited(parse_serving(CONFIG)).model_dump_json())
    assert_refused(dedloc("join", "invitation.json", folder=tmp_path), "served, not trained")
