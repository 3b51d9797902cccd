"""`dedloc init --language`: which data a run gets, how it is weighted, and that it can be read from the Hub."""

from pathlib import Path

import pytest

from dedloc_kit.cli.main import main
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source, TaskConfig
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.task import create_task
from dedloc_kit.organizer.check import check_mixture
from dedloc_kit.organizer.corpus_size import MOST_PASSES
from dedloc_kit.organizer.language_data import text_of
from dedloc_kit.organizer.languages import find_language, find_languages
from dedloc_kit.organizer.prepare import prepare_tokenizer
from dedloc_kit.resources import recipe
from tests.batches import batches_from
from tests.commands import dedloc
from tests.loopback_hub import loopback_hub
from tests.organizer.hub_datasets import ROWS, put_on_hub

LANGUAGES = [
    *("bn", "sw", "uk", "yo", "mi", "en", "zh", "ar", "hi", "is", "ga", "eu", "am", "de", "ru", "ceb", "nan", "haw"),
    *("fas", "nor", "aai", "tpi", "kas", "hin_Latn", "sw,yo", "en,uk,sw"),
]
OF_TEXT = ["gpt", "sahajbert", "encoder", "continue", "experts", "causal-pipeline", "albert-demo"]
ROUNDED = 1.02
"""Weights have four digits."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(*options: str) -> RunConfig:
    assert main(["init", "ours", *options]) == 0
    return load_run(Path("ours/run.toml"))


def planned(run: RunConfig) -> int:
    return run.optimizer.total_steps * run.global_batch * int(run.task.options["sequence_length"])


@pytest.mark.parametrize("asked", LANGUAGES)
def test_a_language_alone_makes_a_run_that_check_accepts(asked: str) -> None:
    run = made("--language", asked)
    found = find_languages(asked)
    check_mixture(run.data.train)
    assert run.task.options["language"] == found[0].code
    assert {source.dataset for source in run.data.train} >= {
        "HuggingFaceFW/fineweb" if language.code == "en" else "HuggingFaceFW/fineweb-2" for language in found
    }
    assert (run.data.evaluation is not None) == any(language.has_test for language in found)
    tokens = {text.language: text for text in map(text_of, found)}
    for source in run.data.train:
        if source.dataset.startswith("HuggingFaceFW"):
            text = next(text for text in tokens.values() if source.subset in (text.language.subset, "sample-350BT"))
            assert source.weight * planned(run) <= MOST_PASSES * text.web * ROUNDED


@pytest.mark.parametrize("name", OF_TEXT)
def test_every_recipe_of_text_takes_a_language_with_little_text(name: str) -> None:
    run, base = made("--recipe", name, "--language", "yo"), load_run(recipe(name) / "run.toml")
    text = text_of(find_language("yo"))
    assert planned(run) <= MOST_PASSES * text.known
    assert run.optimizer.warmup_steps < run.optimizer.total_steps
    changed = {"global_batch": base.global_batch, "name": base.name, "about": base.about, "data": base.data}
    steps = {"total_steps": base.optimizer.total_steps, "warmup_steps": base.optimizer.warmup_steps}
    changed |= {"optimizer": run.optimizer.model_copy(update=steps), "task": base.task}
    assert run.model_copy(update=changed) == base, "nothing else of the recipe is another one"


def test_swahili_is_told_as_people_ask_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = made("--language", "sw", "--recipe", "gpt")
    told = capsys.readouterr().out
    for words in (
        "Swahili: 0.57 G words in FineWeb-2, 13 M in Wikipedia",
        "about 0.9 G tokens (1.3 to 1.8 a word): 45 million parameters from scratch read once, 180 million in four ",
        "passes (20 tokens a parameter)",
        "recommended: gpt (124 million parameters)",
    ):
        assert words in told
    weights = {source.dataset: source.weight for source in run.data.train}
    assert weights == {"HuggingFaceFW/fineweb-2": 0.657, "wikimedia/wikipedia": 0.0145, "HPLT/HPLT2.0_cleaned": 0.3285}
    assert [source.subset for source in run.data.train] == ["swh_Latn", "20231101.sw", "swh_Latn"]
    assert run.data.evaluation == Source(dataset="HuggingFaceFW/fineweb-2", subset="swh_Latn", split="test")


def test_without_a_recipe_the_one_that_fits_the_text_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    run = made("--language", "Yoruba")
    assert run.task.name == load_run(recipe("continue") / "run.toml").task.name
    told = capsys.readouterr().out
    assert "recommended: continue, from a multilingual model: better below 100 million parameters" in told
    assert "put the 40 digits of a commit in place of COMMIT" in told


def test_languages_come_in_one_option_or_in_several() -> None:
    assert main(["init", "ours", "--recipe", "gpt", "--language", "sw,yo"]) == 0
    assert main(["init", "theirs", "--recipe", "gpt", "--language", "sw", "--language", "Yoruba"]) == 0
    ours, theirs = load_run(Path("ours/run.toml")), load_run(Path("theirs/run.toml"))
    assert ours.data == theirs.data
    of = {
        code: sum(each.weight for each in ours.data.train if (each.subset or "").endswith(code))
        for code in ("swh_Latn", "yor_Latn")
    }
    assert of["yor_Latn"] > 1.5 * text_of(find_language("yo")).web / text_of(find_language("sw")).web * of["swh_Latn"]


def test_a_language_that_is_mostly_bible_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    made("--language", "Arifama-Miniafia")
    assert "100 % of the text of Arifama-Miniafia is the Bible" in capsys.readouterr().out


def test_a_language_without_held_out_text_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert made("--language", "en").data.evaluation is None
    assert "there is no held-out text; name some in [data.evaluation]" in capsys.readouterr().out
    assert main(["init", "theirs", "--language", "en", "--evaluation", "us/text::test"]) == 0
    assert load_run(Path("theirs/run.toml")).data.evaluation == Source(dataset="us/text", split="test")


def test_a_wikipedia_that_is_in_fineweb_2_already_or_written_by_programs_counts_little() -> None:
    rest = text_of(find_language("Cebuano"))
    assert rest.wikipedia == pytest.approx(rest.known / 4)
    there = find_language("mi")
    assert (there.wikipedia, text_of(there).wikipedia) == ("mi", 0.0)


def test_other_data_may_be_named_beside_a_language() -> None:
    run = made("--recipe", "gpt", "--language", "Swahili", "--dataset", "us/text")
    assert (run.data.train, run.task.options["language"]) == ((Source(dataset="us/text"),), "sw")
    assert run.optimizer.total_steps == load_run(recipe("gpt") / "run.toml").optimizer.total_steps


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--language", "swahli"), "the nearest are Swahili (sw)"),
        (("--language", ""), "--language is empty"),
        (("--recipe", "gpt", "--language", "xq"), "no dataset known here has a language 'xq'"),
        (("--recipe", "gpt", "--language", "sw", "--language", "und"), "'und'"),
        (("--recipe", "chat", "--language", "sw"), "--dataset"),
        (("--recipe", "swav", "--language", "sw"), "leave --language out"),
        (("--recipe", "text-to-image", "--language", "sw"), "--dataset"),
        (("--language", "\x1b[2J\n" * 100), "has no such long name"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    options: tuple[str, ...], words: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "ours", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not list(elsewhere.iterdir())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("asked", ["uk", "en,sw"])
def test_a_run_reads_the_datasets_as_they_are_laid_out_on_the_hub(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made("--recipe", "gpt", "--language", asked)
    held_out = run.data.evaluation
    assert held_out is not None
    warned: list[str] = []
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        put_on_hub(hub, [*run.data.train, held_out])
        for source in run.data.train:
            found = list(in_order(source, texts, warn=warned.append))
            assert len(found) == ROWS
            assert all(text.startswith(f"{source.dataset} {source.subset} train") for text in found)
        assert next(iter(in_order(held_out, texts, warn=warned.append))).startswith(
            f"{held_out.dataset} {held_out.subset} test"
        )
        small = small_model(run)
        prepare_tokenizer(small, characters=20_000)
        batch = next(batches_from(create_task(small), 2, 0, warned.append))
        assert all(len(values) for values in batch.values())
    assert warned == []


@pytest.mark.soak
def test_check_reads_a_language_from_the_hub_and_says_how_long_it_takes(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEDLOC_HOME", str(elsewhere / "home"))
    with loopback_hub(monkeypatch, elsewhere / "cache") as hub:
        run = made("--recipe", "albert-demo", "--language", "Yoruba")
        assert run.data.evaluation is not None
        put_on_hub(hub, [*run.data.train, run.data.evaluation])
        for arguments in (("prepare", "tokenizer"), ("check", "--volunteers", "2xCPU", "--threads", "1")):
            said = dedloc(*arguments, "ours/run.toml", folder=elsewhere, deadline=240.0)
            assert said.returncode == 0, said.stderr
        assert "to finish" in said.stdout


def small_model(run: RunConfig) -> RunConfig:
    model = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
    }
    values = {
        **run.task.options,
        "vocab_size": 300,
        "sequence_length": 64,
        "model": {**run.task.options["model"], **model},
    }
    return run.model_copy(update={"task": TaskConfig.model_validate({"name": run.task.name, **values})})
