"""Every benchmark runs, keeps its numbers where it is asked to, and `make bench` runs all that need no argument."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
WITH_ARGUMENTS = {"recipe"}
"""Which recipe?"""
SMALLEST = {
    "allreduce": "--network loopback --peers 2 --parameters 1e5 --warm-up 1 --rounds 1 --cases tcp/8bit ours/8bit",
    "attacks": "--attack sign --defence mean --steps 4 --seeds 1",
    "agreement_scale": "--peers 16 --rounds 1",
    "chaos": "--seconds 30 --volunteers 2 --seed 8",
    "checks": "--volunteers 2 --steps 1 --times 1 --shares 0.5 --values 1e5",
    "collaboration": "--network loopback --peers 2 --parameters 1e5 --step-seconds 4 --microbatch-seconds 0.5 --steps 1"
    " --real-peers 0 --systems ours",
    "continuing": "--steps 2",
    "convergence": "--steps 2 --seeds 0",
    "corpus": "--documents 200 --words 100 --repeats 1",
    "dashboard": "--people 5 --steps 200 --contributions 400 --repeats 1 --viewers 2 --seconds 2 --events 10 --peers 5"
    " --directory-steps 1",
    "data": "--seconds 0.2 --repeats 1",
    "experts": "--parts calls --steps 1",
    "first_sample": "--repetitions 1",
    "footprint": "--parameters 1e6",
    "hostile": "--attacks identities --seconds 5",
    "images": "--microbatch 2 --seconds 0.2 --repeats 1",
    "joining": "--network loopback --parameters 1e5 --repeats 1 --cases one --no-join",
    "lent_lines": "--clients 4 --helpers 1 --parameters 1e6",
    "mishaps": "--minutes 3",
    "optimizer": "--parameters 1e5 --threads 1 --repeats 1",
    "pipeline": "--balance --seeds 1",
    "prediction": "--steps 1",
    "recipe": "FOLDER/run.toml --volunteers 2 --every 1 --hours 0.1 --folder FOLDER/trained",
    "recovery": "--network loopback --peers 2 --parameters 1e5 --step-seconds 4 --microbatch-seconds 0.5 --pause 2"
    " --systems ours --faults kill --deadline 60",
    "rounds": "--peers 4 --rounds 1 --processes 1",
    "scale": "--peers 2 --steps 1 --step-seconds 4 --microbatch-seconds 0.5",
    "serving": "--balance --seeds 1",
    "square_cube": "--widths 64 128 --tokens 64 --repeats 1",
    "task": "--seconds 0.2 --repeats 1 --width 64 --layers 1 --sequence-length 64 --microbatch 2",
    "task before a card": "--null-card h200 --repeats 1 --microbatches 2 --vocabulary 300",
}
"""The arguments with which each is over soonest, by its name; one with two forms has more words."""
RECIPE = """
name = "tiny"
global_batch = 8

[task]
name = "albert"
tokenizer = "tokenizer"
vocab_size = 300
sequence_length = 32
evaluation_samples = 8
model = {hidden_size = 32, embedding_size = 16, num_hidden_layers = 1, num_attention_heads = 1, intermediate_size = 32}

[data]
train = [{dataset = "text"}]
evaluation = {dataset = "text", split = "test"}

[optimizer]
total_steps = 2
warmup_steps = 1
"""


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_benchmark_keeps_its_numbers_in_a_file_if_asked(name: str) -> None:
    assert '"--json"' in SCRIPTS[name]
    assert "json.dump" in SCRIPTS[name]


def test_make_bench_runs_all_benchmarks_that_need_no_argument() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    named = re.search(r"^BENCHMARKS := (.*)$", makefile, re.MULTILINE)
    assert named is not None
    assert sorted(named[1].split()) == sorted(SCRIPTS.keys() - WITH_ARGUMENTS)


def test_the_readme_says_what_each_benchmark_answers() -> None:
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert {name for name in SCRIPTS if f"| `{name}.py` |" in readme} == SCRIPTS.keys()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted({*SCRIPTS, *SMALLEST}))
def test_a_benchmark_runs_in_its_smallest_form(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RECIPE)
    (tmp_path / "text").mkdir()
    documents = [f"Number {number} is old. It comes before {number + 1}. So it was." for number in range(500)]
    for split in ("train", "test"):
        lines = "".join(json.dumps({"text": document}) + "\n" for document in documents)
        (tmp_path / "text" / f"{split}-00000-of-00001.jsonl").write_text(lines)
    numbers = tmp_path / "numbers.json"
    arguments = SMALLEST[name].replace("FOLDER", str(tmp_path)).split()
    command = [sys.executable, "-m", f"benchmarks.{name.split()[0]}", *arguments, "--json", str(numbers)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    assert json.loads(numbers.read_text(encoding="utf-8"))
