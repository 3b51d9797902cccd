"""The folder of a run to be: complete, loadable, the recipe's comments kept, and nothing ever overwritten."""

import json
import sys
from pathlib import Path

import pytest

from dedloc_kit.cli.main import main
from dedloc_kit.config.coordinator import settings_beside
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.task import Source
from dedloc_kit.learning.models.picture_model.captioned import PictureSource
from dedloc_kit.learning.models.picture_model.settings import load_images
from dedloc_kit.resources import recipe, recipes
from tests.notebooks import valid

WIKIPEDIA = ("--dataset", "wikimedia/wikipedia:20231101.bn=0.23")
CRAWL = ("--dataset", "HuggingFaceFW/fineweb-2:ben_Beng=0.77")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["init", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("name", [name for name in recipes() if name != "text-to-image"])
def test_every_recipe_makes_a_run_that_differs_in_name_purpose_and_data_alone(name: str) -> None:
    assert main(["init", "our-run", "--recipe", name, *WIKIPEDIA, *CRAWL, "--about", 'A "model" (data) বাংলা']) == 0
    run, base = load_run(Path("our-run/run.toml")), load_run(recipe(name) / "run.toml")
    assert (run.name, run.about) == ("our-run", 'A "model" (data) বাংলা')
    column = "messages" if name == "chat" else base.data.train[0].column
    assert run.data.train == (
        Source(dataset="wikimedia/wikipedia", subset="20231101.bn", column=column, weight=0.23),
        Source(dataset="HuggingFaceFW/fineweb-2", subset="ben_Beng", column=column, weight=0.77),
    )
    assert run.data.evaluation is None
    tokenizer = {"tokenizer": str(Path("our-run/tokenizer").resolve())} if "tokenizer" in base.task.options else {}
    assert run.task.options == {**base.task.options, **tokenizer}
    same = {"name": base.name, "about": base.about, "data": base.data, "task": base.task}
    assert run.model_copy(update=same) == base


def test_the_file_of_the_coordinator_lies_beside_the_run_and_changes_nothing() -> None:
    assert main(["init", "our-run", "--recipe", "gpt", *WIKIPEDIA]) == 0
    assert "# evaluate_every = 10" in Path("our-run/coordinator.toml").read_text().splitlines()
    assert settings_beside(Path("our-run/run.toml")) == {}


def test_the_recipe_s_comments_stay_and_its_hints_what_to_change_go(elsewhere: Path) -> None:
    assert main(["init", "our-bert", "--recipe", "sahajbert", *WIKIPEDIA, "--language", "as"]) == 0
    text = (elsewhere / "our-bert" / "run.toml").read_text()
    assert "# ISO 639 code: it decides where sentences end" in text
    assert "# samples over all peers per optimizer step (DeDLOC, section 4.2)" in text
    assert "the run is called our-bert-FINGERPRINT" in text
    assert "(language)" not in text
    assert "# [data.evaluation]" in text
    assert load_run(elsewhere / "our-bert" / "run.toml").task.options["language"] == "as"


def test_a_language_is_put_where_the_recipe_has_none() -> None:
    assert main(["init", "our-toy", "--recipe", "albert-demo", *WIKIPEDIA, "--language", "sw"]) == 0
    assert load_run(Path("our-toy/run.toml")).task.options["language"] == "sw"


def test_a_run_goes_on_from_the_model_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    start = f"owner/model@{'0123456789' * 4}"
    told = []
    for name, more in (("ours", []), ("theirs", ["--evaluation", "a/b"])):
        assert main(["init", name, "--recipe", "continue", *WIKIPEDIA, "--init-from", start, *more]) == 0
        assert load_run(Path(f"{name}/run.toml")).task.options["init_from"] == start
        told += [line.strip() for line in capsys.readouterr().out.splitlines() if " dedloc " in line]
    assert [line.partition("    #")[0] for line in told] == [
        "dedloc prepare tokenizer ours/run.toml",
        "dedloc check ours/run.toml",
        "dedloc launch ours/run.toml",
        "dedloc prepare tokenizer theirs/run.toml",
        "dedloc check theirs/run.toml --compare owner/model",
        "dedloc launch theirs/run.toml",
    ]


def test_a_recipe_that_draws_takes_other_pictures_and_a_tokenizer_of_its_own(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "drawn").mkdir()
    data = ("--dataset", "drawn", "--dataset", "owner/photos:large:train")
    assert main(["init", "ours", "--recipe", "text-to-image", *data, "--language", "bn", "--about", "For all."]) == 0
    told = [line.strip() for line in capsys.readouterr().out.splitlines() if " dedloc " in line]
    commands = ["prepare images ours/run.toml --shards", "check ours/run.toml", "launch ours/run.toml"]
    assert told == [f"dedloc {command}" for command in commands]
    run, base = load_run(Path("ours/run.toml")), load_run(recipe("text-to-image") / "run.toml")
    images, others = load_images(Path("ours/run.toml")), load_images(recipe("text-to-image") / "run.toml")
    assert images.sources == (
        PictureSource(dataset=str(elsewhere / "drawn")),
        PictureSource(dataset="owner/photos", subset="large"),
    )
    assert images.model_copy(update={"sources": others.sources}) == others
    codes = Source(dataset=str(elsewhere / "ours" / "codes"), tokenized=True)
    assert (run.data.train, run.data.evaluation) == ((codes,), codes.model_copy(update={"split": "test"}))
    own = {"language": "bn", "tokenizer": str(elsewhere / "ours" / "tokenizer")}
    pictures = {**base.task.options["pictures"], "model": str(elsewhere / "ours" / "pictures")}
    assert run.task.options == {**base.task.options, **own, "pictures": pictures}
    same = {"name": base.name, "about": base.about, "data": base.data, "task": base.task}
    assert run.model_copy(update=same) == base
    text, page = (Path("ours", name).read_text() for name in ("run.toml", "README.md"))
    assert "(data)" not in text
    assert "t5-small" not in text
    assert "- owner/photos large" in page


def test_local_data_is_named_as_seen_from_the_run_s_folder(elsewhere: Path) -> None:
    (elsewhere / "corpus").mkdir()
    assert main(["init", "a", "--recipe", "albert-demo", "--dataset", "corpus", "--evaluation", "corpus::test"]) == 0
    assert 'dataset = "../corpus"' in Path("a/run.toml").read_text()
    data = load_run(Path("a/run.toml")).data
    assert data.train == (Source(dataset=str(elsewhere / "corpus")),)
    assert data.evaluation == Source(dataset=str(elsewhere / "corpus"), split="test")
    assert str(elsewhere) not in Path("a/README.md").read_text(), (
        "the page tells strangers how this machine is laid out"
    )


def test_a_folder_with_a_split_test_holds_it_out_by_itself(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("more/train.txt", "text/train.txt", "text/test.txt", "parts/a/b.txt", "parts/test/b.txt"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_text("A text.")
    text = Source(dataset=str(elsewhere / "text"), split="test")
    for run, arguments, held_out in (
        ("one", ["--dataset", "text"], text),
        ("two", ["--dataset", "more=0.3", "--dataset", "text=0.7"], text),
        ("none", ["--dataset", "more"], None),
        ("named", ["--dataset", "more", "--evaluation", "text"], text),
        ("whole", ["--dataset", "text", "--evaluation", "more"], Source(dataset=str(elsewhere / "more"))),
        (
            "file",
            ["--dataset", "text", "--evaluation", "text/test.txt"],
            Source(dataset=str(elsewhere / "text/test.txt")),
        ),
        ("folder", ["--dataset", "parts"], Source(dataset=str(elsewhere / "parts"), split="test")),
        ("hub", ["--dataset", "a/b", "--evaluation", "a/b:c"], Source(dataset="a/b", subset="c", split="test")),
        ("split", ["--dataset", "text", "--evaluation", "a/b::dev"], Source(dataset="a/b", split="dev")),
    ):
        assert main(["init", run, "--recipe", "albert-demo", *arguments]) == 0
        assert load_run(Path(run) / "run.toml").data.evaluation == held_out, run
        said = "held-out data: " in capsys.readouterr().out
        assert said == (held_out is not None)


def test_the_community_s_page_and_the_notebooks_say_what_it_is_for(elsewhere: Path) -> None:
    assert main(["init", "our-bert", "--recipe", "sahajbert", *WIKIPEDIA, "--about", "Bengali for all."]) == 0
    page = (elsewhere / "our-bert" / "README.md").read_text()
    for words in ("# our-bert", "Bengali for all.", "`bn`", "INVITATION", "What happens next", "wikimedia/wikipedia"):
        assert words in page
    notebooks = sorted((elsewhere / "our-bert" / "notebooks").iterdir())
    assert [path.name for path in notebooks] == ["join.ipynb", "join_colab.ipynb", "join_kaggle.ipynb"]
    for path in notebooks:
        read = valid(path.read_text(encoding="utf-8"))
        assert "joins the run **our-bert**.\n\n> Bengali for all." in read.cells[0].source
        assert 'INVITATION = ""' in json.dumps([cell.source for cell in read.cells]).replace('\\"', '"')


def test_a_folder_that_is_there_is_left_as_it_is(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "our-bert").mkdir()
    (elsewhere / "our-bert" / "run.toml").write_text("mine")
    said = refusal(capsys, "our-bert", "--recipe", "sahajbert", *WIKIPEDIA)
    assert "our-bert exists already" in said
    assert (elsewhere / "our-bert" / "run.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say which recipe with --recipe; there are: gpt (a model that writes"),
        (("--recipe", "sahajbert"), "--dataset"),
        (
            ("--recipe", "sahajbart", *WIKIPEDIA),
            "there is no recipe 'sahajbart'; choose one of: albert-demo",
        ),
        (("--recipe", "sahajbert", "--dataset", "nowhere"), "nowhere"),
        (("--recipe", "sahajbert", "--dataset", "a/b:c:d:e"), "'a/b:c:d:e' is no dataset"),
        (("--recipe", "sahajbert", "--dataset", "a/b=0"), "weight"),
        (("--recipe", "sahajbert", "--dataset", "a/b:c=77%"), "'a/b:c=77%' is no dataset"),
        (("--recipe", "sahajbert", *WIKIPEDIA, "--language", "Bengalli"), "the nearest are Bengali (bn)"),
        (("--recipe", "swav", *WIKIPEDIA, "--language", "bn"), "--language"),
        (
            ("--recipe", "continue", *WIKIPEDIA, "--init-from", "owner/model"),
            "'owner/model' names no commit of a model",
        ),
        (("--recipe", "text-to-image", "--dataset", "a/b", "--evaluation", "a/b"), "leave --evaluation out"),
        (("--recipe", "text-to-image", "--dataset", "a/b=0.5"), "'a/b=0.5' can have no weight; leave =0.5 out"),
        (("--recipe", "gpt", *WIKIPEDIA, "--init-from", "owner/model"), "the recipe gpt begins untrained"),
    ],
)
def test_what_is_missing_or_wrong_is_said_with_its_flag_and_nothing_is_written(
    arguments: tuple[str, ...], words: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refusal(capsys, "our-run", *arguments)
    assert not list(elsewhere.iterdir())


def test_a_name_that_no_run_can_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "lower-case letters" in refusal(capsys, "Our run", "--recipe", "sahajbert", *WIKIPEDIA)
    assert "lower-case letters" in refusal(capsys, "../run", "--recipe", "sahajbert", *WIKIPEDIA)


def test_in_a_terminal_what_is_missing_is_asked_for_and_what_makes_no_sense_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter(
        ["sahajbert", "For Assamese.", "Asamese", "as", "a/b:c=40%", "a/b:c=0.4", "d/e=0.6", "", "no", "a/b::test"]
    )
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: next(answers))
    assert main(["init", "our-run"]) == 0
    run = load_run(Path("our-run/run.toml"))
    assert (run.about, run.task.options["language"]) == ("For Assamese.", "as")
    assert [(each.dataset, each.subset, each.weight) for each in run.data.train] == [
        ("a/b", "c", 0.4),
        ("d/e", None, 0.6),
    ]
    assert run.data.evaluation == Source(dataset="a/b", split="test")


def test_who_is_asked_which_model_it_is_to_be_is_told_what_each_is_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = f"owner/model@{'ab' * 20}"
    answers = iter(["continue", "", "as", "main", start, "a/b", "", ""])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: next(answers))
    assert main(["init", "our-run"]) == 0
    said = capsys.readouterr().out
    assert "continue     go on from a model that exists" in said
    assert "gpt          a model that writes" in said
    assert load_run(Path("our-run/run.toml")).task.options["init_from"] == start


def test_whoever_has_said_what_must_be_said_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    assert main(["init", "our-run", "--recipe", "sahajbert", *WIKIPEDIA]) == 0


def test_who_names_no_data_in_a_terminal_gets_that_of_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["gpt", "For all.", "Swahili", "", ""])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: next(answers))
    assert main(["init", "our-run"]) == 0
    assert [each.subset for each in load_run(Path("our-run/run.toml")).data.train] == [
        *("swh_Latn", "20231101.sw", "swh_Latn")
    ]


def test_who_names_a_language_alone_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    assert main(["init", "our-run", "--language", "sw"]) == 0
