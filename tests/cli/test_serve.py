"""`dedloc serve`, as its users run it: the commands of docs/serve.md."""

import json
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from transformers import pipeline

from dedloc_kit.inference.model import AutoDistributedModelForCausalLM, tokenizer_of
from tests.commands import Running, assert_refused, dedloc, running
from tests.text_runs import write_text

DEADLINE = 240.0


def serving(folder: Path, what: Path, *arguments: str) -> AbstractContextManager[Running]:
    """One server as long as this is entered; then it is interrupted, and leaves as it should."""
    here = ("--host", "127.0.0.1", *arguments)
    return running("serve", what, *here, folder=folder, end=signal.SIGINT, deadline=DEADLINE)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_demo_of_a_model_that_writes_shows_how_it_learns_and_two_who_serve_it_go_on_with_a_sentence(
    tmp_path: Path,
) -> None:
    given = tmp_path / "home" / "demo" / "gpt"
    given.mkdir(parents=True)
    write_text(given)  # a minute of a core less than what it would make of all that this machine has
    (given / "causal").rename(given / "tokenizer-smoke")
    run, report = tmp_path / "run", tmp_path / "report.json"
    asked = ("--recipe", "gpt", "--steps", "15", "--volunteers", "1", "--no-browser", "--keep", run)
    trained = dedloc("demo", *asked, "--report", report, folder=tmp_path, deadline=4 * DEADLINE)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    result = json.loads(report.read_text())
    assert result["eval_loss_last"] < result["eval_loss_first"] - 0.5
    assert "after step 0 it writes: " in trained.stdout
    assert "after step 15 it writes: " in trained.stdout

    exported = dedloc("export", run, tmp_path / "out", folder=tmp_path)
    assert exported.returncode == 0, exported.stderr
    for folder in (tmp_path / "out", run / "coordinator" / "model"):
        write = pipeline("text-generation", model=str(folder))
        assert write("def add(", max_new_tokens=8)[0]["generated_text"].startswith("def add(")

    page = ("--host", "127.0.0.1", "--port", "0", "--weights", "float32", "--name", "mine")
    with serving(tmp_path, run / "coordinator", "--span", "0:1", *page) as first:
        first.wait_for("to serve:", DEADLINE)
        invitation = tmp_path / "runs" / "serve-mine" / "invitation.json"
        layers = json.loads(invitation.read_text())["run"]["config"]["num_hidden_layers"]
        with serving(tmp_path, invitation, "--span", f"1:{layers}", "--weights", "float32") as second:
            second.wait_for("Serving ", DEADLINE)
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


@pytest.mark.soak
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.json",), ("there is no invitation at 'nowhere.json'",)),
        (("empty", "--client-mode"), ("has to be reached",)),
        (("empty", "--tls-cert", "a.pem"), ("tls_key",)),
        (("empty", "--name", "N!"), ("--name N!", "lower-case")),
        (("empty",), ("config.json", "cannot be read")),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(dedloc("serve", *arguments, folder=tmp_path), *words)


@pytest.mark.soak
def test_a_run_is_not_served_and_a_served_model_is_not_trained(tmp_path: Path) -> None:
    from dedloc_kit.serving.config import parse_serving
    from tests.invitations import invited
    from tests.serving.test_config import CONFIG

    (tmp_path / "invitation.json").write_text(invited(parse_serving(CONFIG)).model_dump_json())
    assert_refused(dedloc("join", "invitation.json", folder=tmp_path), "served, not trained")
