"""`dedloc demo --init-from`: what a recipe goes on from."""

from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.places import published
from dedloc_kit.errors import UserError
from dedloc_kit.learning.models.init_from import fingerprint
from dedloc_kit.learning.task import create_task
from dedloc_kit.organizer.going_on import model_folder
from dedloc_kit.organizer.prepare import prepare_demo, prepare_tokenizer
from dedloc_kit.organizer.prepare_tokens import prepare_tokens
from tests.text_runs import text_run, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of models of both kinds, `causal` and `encoder`."""
    folder = tmp_path_factory.mktemp("models")
    write_text(folder)
    for name in ("causal", "encoder"):
        task = create_task(text_run(folder, name, model={"max_position_embeddings": 96}))
        (folder / f"{name}-model").mkdir()
        task.export(task.model(), folder / f"{name}-model", name)
    return folder


def test_the_demo_of_a_chat_goes_on_from_a_model_whose_shape_context_and_tokenizer_it_takes(
    folder: Path, tmp_path: Path
) -> None:
    writer = folder / "causal-model"
    run = prepare_demo("chat", tmp_path, str(writer))
    options = run.task.options
    assert (run.name, options["init_from"], options["architecture"]) == ("chat-smoke", str(writer), "llama")
    assert (options["sequence_length"], options["init_from_sha256"]) == (96, fingerprint(writer))
    task: Any = create_task(run)
    assert task.first_model().config.hidden_size == 32
    assert len(task.tokenizer) == task.first_model().get_input_embeddings().num_embeddings
    assert parse_run(published(run)).run_id == run.run_id, "volunteers are told the same run"


def test_the_demo_of_a_chat_without_a_model_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^the recipe chat goes on from a model; make one with: .* --init-from F.*$"):
        prepare_demo("chat", tmp_path)


@pytest.mark.parametrize(
    ("recipe", "start", "said"),
    [
        (
            "albert-demo",
            "causal-model",
            "^the recipe albert-demo begins untrained; leave --init-from out, or",
        ),
        ("chat", "encoder-model", r'a modernbert is for the task encoder; set task\.name = "encoder"'),
        ("chat", "corpus", "corpus is neither a run's folder"),
        ("chat", "nowhere", "nowhere does not exist; name a run's folder"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_in_a_line(
    recipe: str, start: str, said: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said) as raised:
        prepare_demo(recipe, tmp_path, str(folder / start))
    assert "\n" not in str(raised.value)


def test_neither_tokens_nor_a_tokenizer_are_prepared_for_conversations(folder: Path, tmp_path: Path) -> None:
    run = prepare_demo("chat", tmp_path, str(folder / "causal-model"))
    with pytest.raises(UserError, match=r"^the task 'chat' reads its data as it is, so there are no tokens"):
        prepare_tokens(run, tmp_path / "tokens")
    task = run.task.model_copy(update={"tokenizer": str(tmp_path / "tokenizer"), "vocab_size": 300})
    with pytest.raises(UserError, match=r"has the tokenizer of the model that it goes on from; remove task\.to"):
        prepare_tokenizer(run.model_copy(update={"task": task}))
    assert {path.name for path in tmp_path.iterdir()} == set()


def test_a_model_s_folder_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    assert model_folder(str(folder / "causal-model"), tmp_path / "none") == (folder / "causal-model").resolve()
    assert not (tmp_path / "none").exists()
