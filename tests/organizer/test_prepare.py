from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from dedloc_kit import resources
from dedloc_kit.cli import main as cli
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.organizer import prepare
from dedloc_kit.organizer.prepare import TrainingDisplay, prepare_demo, prepare_tokenizer, push_tokenizer

RUN = """
name = "tokenizer-test"
global_batch = 8
[task]
name = "albert"
tokenizer = "tokenizer"
vocab_size = {vocabulary}
[[data.train]]
dataset = "./corpus.txt"
"""
REFUSAL = "403 Forbidden: you may not write here"


def fail(text: str) -> None:
    raise AssertionError(text)


class Hub:
    """What `push_tokenizer` uses of `HfApi`."""

    calls: tuple[dict[str, Any], ...] = ()
    refuses = False
    is_private = True

    def create_repo(self, repository: str, **options: Any) -> None:
        if Hub.refuses:
            raise Exception(REFUSAL)
        Hub.calls += ({"repository": repository, **options},)

    def repo_info(self, repository: str, repo_type: str) -> SimpleNamespace:
        return SimpleNamespace(private=Hub.is_private)

    def upload_folder(self, **options: Any) -> SimpleNamespace:
        Hub.calls += (options,)
        return SimpleNamespace(oid="0a1b2c")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    monkeypatch.setattr(Hub, "calls", ())
    monkeypatch.setattr(Hub, "refuses", False)
    return Hub


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text("the river runs to the sea, and it runs by day and by night.\n\n" * 50)
    (tmp_path / "run.toml").write_text(RUN.format(vocabulary=25))
    return tmp_path / "run.toml"


def test_the_tokenizer_of_a_run_is_trained(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = prepare_tokenizer(load_run(path))
    assert folder == path.parent / "tokenizer"
    assert len(load_tokenizer(str(folder))) == 25
    assert capfd.readouterr().err == "read 0.1 million characters; training the vocabulary\n"


SMALL = """
name = "small"
[task]
tokenizer = "tokenizer-small"
vocab_size = 24
[[data.train]]
dataset = "data.txt"
"""


@pytest.fixture
def shipped(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe with a small form."""
    monkeypatch.setattr(prepare, "recipe", lambda name: path.parent)
    (path.parent / "smoke.toml").write_text(SMALL)
    return path.parent


def test_a_demo_takes_the_recipe_s_small_form_and_leaves_the_recipe_as_it_is(shipped: Path, tmp_path: Path) -> None:
    (shipped / "corpus.txt").rename(shipped / "data.txt")
    before = set(shipped.iterdir())
    run = prepare_demo("recipe", tmp_path / "home" / "demo")
    assert (run.name, run.data.train[0].dataset) == ("small", str(shipped / "data.txt"))
    assert run.task.options["tokenizer"] == str(tmp_path / "home" / "demo" / "tokenizer-small")
    assert len(load_tokenizer(run.task.options["tokenizer"])) == 24
    assert set(shipped.iterdir()) - before <= {tmp_path / "home"}
    assert prepare_demo("recipe", tmp_path / "home" / "demo") == run, "the second time it is all there"


def test_a_demo_whose_data_is_not_here_takes_the_text_that_the_kit_brings(shipped: Path, tmp_path: Path) -> None:
    (shipped / "smoke.toml").write_text(SMALL.replace("24", "300"))
    run = prepare_demo("recipe", tmp_path / "demo")
    text = str(resources.small_text())
    assert run.data.train == (Source(dataset=text),)
    assert run.data.evaluation == Source(dataset=text, split="test")
    assert Path(run.task.options["tokenizer"]).is_dir()


def test_the_kit_brings_a_text_of_documents_of_sentences_to_train_on_and_to_hold_out() -> None:
    text = str(resources.small_text())
    train, test = (list(in_order(Source(dataset=text, split=split), texts, warn=fail)) for split in ("train", "test"))
    assert 200_000 < sum(map(len, train)) < 10 * sum(map(len, test)) < 500_000
    assert not set(train) & set(test)
    assert all(len(text) >= 300 and text.endswith((".", "!", "?", '"')) for text in train + test)


def test_a_demo_whose_start_is_not_here_says_where_it_is_told_how_to_make_it(shipped: Path, tmp_path: Path) -> None:
    (shipped / "corpus.txt").rename(shipped / "data.txt")
    text = (shipped / "run.toml").read_text(encoding="utf-8")
    (shipped / "run.toml").write_text(text.replace("[task]", '[task]\ninit_from = "./start"'))
    with pytest.raises(UserError, match=r"goes on from a model in .*start; make it as .*README\.md says"):
        prepare_demo("recipe", tmp_path / "demo")
    (shipped / "start").mkdir()
    assert prepare_demo("recipe", tmp_path / "demo").task.options["init_from"] == str(shipped / "start")


def test_a_demo_whose_codes_are_not_here_says_where_it_is_told_how_to_make_them(shipped: Path, tmp_path: Path) -> None:
    text = (shipped / "run.toml").read_text(encoding="utf-8")
    pictures = 'pictures = { model = "pictures", codes = 4, side = 2, size = 8 }'
    (shipped / "run.toml").write_text(text.replace("[task]", f"[task]\n{pictures}"))
    with pytest.raises(UserError, match=r"learns from codes of pictures; make them as .*README\.md says"):
        prepare_demo("recipe", tmp_path / "demo")


def test_a_demo_of_pictures_that_are_not_here_is_refused(shipped: Path, tmp_path: Path) -> None:
    pictures = 'name = "p"\nglobal_batch = 8\ntask = {name = "swav"}\ndata = {train = [{dataset = "./none"}]}'
    (shipped / "run.toml").write_text(pictures)
    (shipped / "smoke.toml").unlink()
    with pytest.raises(UserError, match="the pictures of the recipe swav are not on this machine"):
        prepare_demo("swav", tmp_path / "demo")
    (shipped / "run.toml").write_text(pictures.replace('"swav"', '"text-to-image", tokenizer = "t", pictures = {}'))
    with pytest.raises(UserError, match=r"learns from codes of pictures; make them as .*README\.md says"):
        prepare_demo("text-to-image", tmp_path / "demo")


def test_progress_is_shown_in_a_few_lines_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    pieces = ["x" * 100_000] * 20
    with TrainingDisplay(2_000_000) as display:
        assert list(display.watch(iter(pieces))) == pieces
    lines = [line.split(" million")[0] for line in capfd.readouterr().err.splitlines()]
    assert lines == ["read 0.5 of 2.0", "read 1.0 of 2.0", "read 1.5 of 2.0", "read 2.0 of 2.0", "read 2.0"]


def test_text_for_fewer_tokens_than_asked_for_is_said(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_text(RUN.format(vocabulary=4000))
    tokens = len(load_tokenizer(str(prepare_tokenizer(load_run(path)))))
    assert f"the text gives only {tokens} tokens of the 4000" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("tokenizer", "owner/name", "task.tokenizer must be a local folder"),
        ("vocab_size", None, "task.vocab_size must say how many"),
    ],
)
def test_a_run_that_names_no_tokenizer_of_its_own_is_refused(path: Path, key: str, value: object, problem: str) -> None:
    run = load_run(path)
    wrong: RunConfig = run.model_copy(update={"task": run.task.model_copy(update={key: value})})
    with pytest.raises(UserError, match=problem):
        prepare_tokenizer(wrong)


def test_a_tokenizer_is_pushed_and_the_line_for_the_run_pins_it(
    path: Path, hub: type[Hub], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["prepare", "tokenizer", str(path), "--push", "owner/name", "--private"]) == 0
    create, upload = hub.calls
    assert create == {"repository": "owner/name", "repo_type": "model", "private": True, "exist_ok": True}
    assert upload["repo_id"] == "owner/name"
    assert upload["folder_path"] == path.parent / "tokenizer"
    said = capfd.readouterr()
    assert said.out.endswith(
        f'put into {path}, in place of the line with tokenizer:\n\ntokenizer = "owner/name@0a1b2c"\n'
    )
    assert "hf_secret" not in said.out + said.err


def test_a_tokenizer_that_could_not_be_pushed_is_kept_and_pushed_by_the_same_command(
    path: Path, hub: type[Hub], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "refuses", True)
    command = ["prepare", "tokenizer", str(path), "--push", "owner/name"]
    assert cli.main(command) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith(f"dedloc: the tokenizer is in {path.parent / 'tokenizer'}, but not on the Hub")
    assert REFUSAL in said
    assert "the same command" in said
    trained = (path.parent / "tokenizer" / "tokenizer.json").stat()
    monkeypatch.setattr(hub, "refuses", False)
    assert cli.main(command) == 0
    assert (path.parent / "tokenizer" / "tokenizer.json").stat() == trained
    assert len(hub.calls) == 2


def test_what_is_to_be_private_does_not_go_to_a_public_repository(
    path: Path, hub: type[Hub], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "is_private", False)
    assert cli.main(["prepare", "tokenizer", str(path), "--push", "owner/name", "--private"]) == 2
    assert "owner/name is public; make it private" in capfd.readouterr().err
    assert not [call for call in hub.calls if "folder_path" in call]


def test_without_a_token_or_a_name_nothing_is_trained(
    path: Path, hub: type[Hub], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("name", "owner/", "a/b/c", "https://huggingface.co/owner/name"):
        assert cli.main(["prepare", "tokenizer", str(path), "--push", name]) == 2
        assert "use OWNER/NAME" in capfd.readouterr().err
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert cli.main(["prepare", "tokenizer", str(path), "--push", "owner/name"]) == 2
    assert "hf auth login" in capfd.readouterr().err
    assert not (path.parent / "tokenizer").exists()


def test_a_folder_that_is_no_tokenizer_is_not_pushed(tmp_path: Path, hub: type[Hub]) -> None:
    (tmp_path / "private.txt").write_text("a diary")
    with pytest.raises(UserError, match="cannot be loaded"):
        push_tokenizer(tmp_path, "owner/name")
    assert not hub.calls
