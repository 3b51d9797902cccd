"""The notebooks, run from top to bottom as they are, against a real coordinator on loopback.

Nothing in them is left out or replaced: pip fetches the kit from the coordinator. Its environment alone tells it not to
look for the dependencies, which are here, and to install into a folder that is then thrown away.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit.client import fetch_people
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.notebook.generate import PLATFORMS, notebooks_for
from dedloc_kit.organizer.launch import Coordinator
from tests.notebooks import execute, of_cells, valid
from tests.swarm.harness import processes_with, wait_until

DEADLINE = 240
SENTENCES = "The quick brown fox jumps over the lazy dog. It does so again. And then it sleeps.\n"


def small_run(folder: Path) -> RunConfig:
    """A small ALBERT that is done after two global steps."""
    train_tokenizer(iter([SENTENCES] * 20), 60, folder / "tokenizer")
    (folder / "corpus.txt").write_text(SENTENCES * 200)
    sizes = {"embedding_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return parse_run(
        {
            "name": "notebook-test",
            "global_batch": 16,
            "task": {
                "name": "albert",
                "tokenizer": str(folder / "tokenizer"),
                "vocab_size": 60,
                "sequence_length": 32,
                "model": {**sizes, "intermediate_size": 16, "max_position_embeddings": 32},
            },
            "data": {"train": [{"dataset": str(folder / "corpus.txt")}]},
            "optimizer": {"warmup_steps": 0, "total_steps": 2},
        }
    )


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    peer = CoordinatorConfig(
        folder=tmp_path / "coordinator", name="coordinator", swarm_host="127.0.0.1", threads=1, devices="cpu"
    )
    run = small_run(tmp_path)
    with Coordinator(run, peer, host="127.0.0.1", port=0, on_event=lambda event: None) as started:
        started.invitation()
        yield started


@pytest.mark.soak
@pytest.mark.parametrize(
    ("platform", "environment"),
    [
        ("jupyter", {}),  # with nobody before it, as `nbconvert --execute` runs it too: it must not end with the cell
        ("colab", {"COLAB_RELEASE_TAG": "release-colab"}),
        ("kaggle", {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}),  # Interactive is as in Jupyter
    ],
    ids=["jupyter", "colab", "kaggle"],
)
def test_a_notebook_installs_joins_trains_and_thanks(
    platform: str, environment: dict[str, str], coordinator: Coordinator, tmp_path: Path
) -> None:
    url, home, installed = coordinator.dashboard.url, tmp_path / "home", tmp_path / "installed"
    installed.mkdir()
    kernel = {
        "DEDLOC_HOME": str(home),
        "PYTHONPATH": str(installed),
        "PIP_TARGET": str(installed),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
    }
    paths = {place.name: path for place, path in zip(PLATFORMS, notebooks_for(url, tmp_path), strict=True)}
    copies = {name: str(tmp_path / name) for name in ("tokenizer", "corpus.txt")}
    joins = "join(INVITATION, name=NAME or None"
    notebook = valid(paths[platform].read_text().replace(joins, f"{joins}, data={copies}"))
    notebook.cells += of_cells("import dedloc_kit\nprint(dedloc_kit.__file__)").cells
    # In the checkout the worker would take the kit from there.
    execute(notebook, DEADLINE, tmp_path, {**os.environ, **environment, **kernel})

    assert notebook.cells[-1].outputs[0].text.startswith(str(installed)), "the kit did not come from the coordinator"
    assert "Thank you" in str(notebook.metadata.widgets), "the panel did not end with its thanks"
    (person,) = fetch_people(url).people
    assert person.samples >= 2 * coordinator.run.global_batch
    wait_until(lambda: not processes_with(str(home)), "a process of the volunteer or the kernel is left")
