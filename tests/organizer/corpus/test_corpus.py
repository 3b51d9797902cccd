import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from dedloc_kit.cli.main import main
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.organizer.corpus.corpus import prepare_corpus
from dedloc_kit.organizer.corpus.sketch import KEYS
from tests.organizer.corpus.making import Display, make, run_in, written
from tests.organizer.corpus.prose import prose
from tests.organizer.corpus.test_language import ARTICLE
from tests.organizer.corpus.test_rules import BENGALI, CHINESE
from tests.peak import Peak


def fail(text: str) -> None:
    raise AssertionError(text)


def read(folder: Path, subset: str) -> list[str]:
    """As a run reads it."""
    return list(in_order(Source(dataset=str(folder), subset=subset), texts, warn=fail))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_left_is_each_good_document_once_and_the_rest_is_told(tmp_path: Path) -> None:
    run, display = run_in(tmp_path), Display()
    made = make(run, tmp_path / "corpus", display)
    first, second = (list(in_order(source, texts, warn=fail)) for source in run.data.train)
    assert read(tmp_path / "corpus", "one.jsonl") == first[:40]
    assert read(tmp_path / "corpus", "two.jsonl") == second[1:21]
    assert (made.documents, made.read) == (60, 69)
    assert made.characters == sum(map(len, [*first[:40], *second[1:21]]))
    for line in (
        "one.jsonl: 47 documents read, 46 kept",
        "one.jsonl: 1 line removed:",
        "  1: no letter, such as: 1",
        "  1: fewer than 50 words, such as: Too short.",
        "two.jsonl: 22 documents read, 21 kept",
        "7 copies removed:",
    ):
        assert line in display.lines
    said = "\n".join(display.lines)
    assert (
        f"1: shares half of its text, or of a held-out document, with held-out text, such as: {second[21][:20]}" in said
    )
    assert f"2: equal to an earlier document, such as: {first[7][:20]}" in said
    assert f"5: similar to an earlier document, such as: {first[0][:15]}" in said
    card = (tmp_path / "corpus" / "README.md").read_text()
    assert '{"config_name": "one.jsonl", "data_files": "one.jsonl/*.parquet"}' in card
    assert all(line in card for line in display.lines if line.startswith("  "))
    assert len(list((tmp_path / "corpus" / "one.jsonl").iterdir())) > 1
    assert {path.name for path in (tmp_path / "corpus").iterdir()} == {"README.md", "one.jsonl", "two.jsonl"}


def killed(tmp_path: Path, step: str, items: int) -> None:
    """Leave what a corpus consists of when its process is killed there."""
    command = [sys.executable, "-m", "tests.organizer.corpus.making", tmp_path, tmp_path / "corpus", step, str(items)]
    ended = subprocess.run(list(map(str, command)), cwd=Path(__file__).parents[3], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "corpus").exists()


@pytest.mark.child
@pytest.mark.parametrize(
    ("step", "items", "left"),
    [
        ("one.jsonl: documents read", 30, {"keys compared": KEYS, "held-out documents read": 3}),
        ("held-out documents read", 1, {"keys compared": KEYS, "held-out documents read": 3}),
        ("keys compared", 3, {"keys compared": KEYS - 3}),
        ("files written", 2, {}),
    ],
)
def test_a_kill_in_any_step_changes_nothing_of_the_result(
    tmp_path: Path, step: str, items: int, left: dict[str, int]
) -> None:
    run, whole, display = run_in(tmp_path), Display(), Display()
    make(run, tmp_path / "whole", whole)
    killed(tmp_path, step, items)
    make(run, tmp_path / "corpus", display)
    assert content(tmp_path / "corpus") == content(tmp_path / "whole")
    assert {path.name for path in tmp_path.glob("corpus*")} == {"corpus"}
    steps = "held-out documents read", "keys compared"
    assert {name: display.counts[name] for name in steps if display.counts[name]} == left
    assert sum(display.counts.values()) < sum(whole.counts.values()) or items == 1, "it goes on from what was made"


@pytest.mark.child
def test_other_settings_or_other_data_begin_anew(tmp_path: Path) -> None:
    killed(tmp_path, "files written", 2)
    run = run_in(tmp_path)
    with pytest.raises(UserError, match="no document is left"):
        make(run, tmp_path / "corpus", Display(), "bn")
    killed(tmp_path, "files written", 5)
    written(tmp_path / "one.jsonl", list(in_order(run.data.train[0], texts, warn=fail))[25:])
    for name in ("corpus", "whole"):
        make(run, tmp_path / name, Display())
    assert content(tmp_path / "corpus") == content(tmp_path / "whole")


@pytest.mark.parametrize("content", ["{}", "broken", '{".compared": {"identity": "a", "keys": -1}}'])
def test_progress_that_cannot_be_read_begins_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "corpus.partial").mkdir()
    (tmp_path / "corpus.partial" / "progress.json").write_text(content)
    assert make(run_in(tmp_path), tmp_path / "corpus", Display()).documents == 60


def test_only_the_languages_that_are_named_stay(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for name, text in (("one", f"{BENGALI}\n{ARTICLE['bn']}"), ("two", CHINESE)):
        written(tmp_path / f"{name}.jsonl", [text, " ".join(f"{text}{n}" for n, text in enumerate(prose(RANDOM, 60)))])
    display = Display()
    make(run, tmp_path / "corpus", display, "bn", "Olck")
    assert [len(read(tmp_path / "corpus", "one.jsonl")), (tmp_path / "corpus" / "two.jsonl").exists()] == [1, False]
    assert any("1: in the language zh, such as: 河边有一个小村庄" in line for line in display.lines)
    assert any(line.startswith("two.jsonl: languages of documents that break no rule:") for line in display.lines)
    with pytest.raises(UserError, match="no language 'xx' can be told"):
        make(run, tmp_path / "other", Display(), "xx")


RANDOM = np.random.default_rng(2)


def test_one_endless_line_takes_no_more_memory_than_many(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    block = " ".join(prose(RANDOM, 3000)).replace("\n", " ") + " "
    with (tmp_path / "long.txt").open("w") as file:
        for _ in range(2**24 // len(block)):
            file.write(block)
    with (tmp_path / "long.jsonl").open("w") as file:
        file.write('{"text": "')
        for _ in range(2**25 // len(block)):
            file.write(block)
        file.write('"}\n')
    long = [Source(dataset=str(tmp_path / f"long.{kind}")) for kind in ("txt", "jsonl")]
    data = run.data.model_copy(update={"train": (run.data.train[0], long[0])})
    display, peak = Display(), Peak()
    peak.start()
    made = prepare_corpus(run.model_copy(update={"data": data}), tmp_path / "corpus", (), display)
    assert peak.end() < 400 * 2**20
    assert made.documents == 40
    assert any("5 to 10 words that repeat" in line for line in display.lines)
    data = run.data.model_copy(update={"train": (long[1],)})
    with pytest.raises(UserError, match=r"long\.jsonl.* is longer than 16 MiB"):
        prepare_corpus(run.model_copy(update={"data": data}), tmp_path / "other", (), Display())


def test_a_full_disk_is_one_line_and_what_is_written_is_gone_on_with(tmp_path: Path) -> None:
    full = tmp_path / "corpus.partial" / "progress.json.partial"
    full.parent.mkdir()
    full.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"^the disk of .*corpus\.partial is full; make room there.*it goes on from"):
        make(run_in(tmp_path), tmp_path / "corpus", Display())
    full.unlink()
    assert make(run_in(tmp_path), tmp_path / "corpus", Display()).documents == 60


def test_without_held_out_text_that_is_said(tmp_path: Path) -> None:
    run, display = run_in(tmp_path), Display()
    data = run.data.model_copy(update={"evaluation": None})
    assert make(run.model_copy(update={"data": data}), tmp_path / "corpus", display).documents == 61
    assert "the run's file has no [data.evaluation], so there is no held-out text to look for" in display.lines


MISSING = """
import sys
from pathlib import Path
from dedloc_kit.errors import UserError
from tests.organizer.corpus.making import Display, make, run_in
for name in ("rensa", "py3langid", "GlotScript"):
    kept = {each: sys.modules.pop(each) for each in list(sys.modules) if each.partition(".")[0] == name}
    sys.modules[name] = None
    try:
        make(run_in(Path(sys.argv[1])), Path(sys.argv[1]) / "corpus", Display())
    except UserError as error:
        print(error)
    sys.modules.pop(name)
    sys.modules |= kept
"""


@pytest.mark.child
def test_a_missing_package_is_one_line_with_what_to_install(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    said = subprocess.run(
        [sys.executable, "-c", MISSING, tmp_path], cwd=root, capture_output=True, text=True, timeout=120
    )
    expected = "prepare corpus needs the package {}; run pip install 'dedloc_kit[corpus]'"
    assert said.stdout.splitlines() == [expected.format(name) for name in ("rensa", "py3langid", "GlotScript")]


TOML = """name = "tiny"
global_batch = 8
[task]
name = "causal"
tokenizer = "words"
vocabulary = 300
[[data.train]]
dataset = "./one.jsonl"
[[data.train]]
dataset = "./two.jsonl"
weight = 0.5
"""


def test_the_command_cleans_and_says_how_a_run_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_in(tmp_path)
    (tmp_path / "run.toml").write_text(TOML)
    assert main(["prepare", "corpus", str(tmp_path / "run.toml")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("61 of 69 documents are left, with ")
    assert said.out.endswith(
        f"put into {tmp_path / 'run.toml'}, in place of every section [[data.train]]:\n\n"
        '[[data.train]]\ndataset = "corpus"\nsubset = "one.jsonl"\n\n'
        '[[data.train]]\ndataset = "corpus"\nsubset = "two.jsonl"\nweight = 0.5\n'
    )
    assert "7 copies removed:" in said.err
    assert tomllib.loads(said.out[said.out.index("[[data.train]]\n") :])["data"]["train"][1]["weight"] == 0.5
    assert main(["prepare", "corpus", str(tmp_path / "run.toml")]) == 2
    assert "corpus exists already; remove it or choose another folder" in capsys.readouterr().err


def test_a_source_of_which_nothing_is_left_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_in(tmp_path)
    written(tmp_path / "two.jsonl", ["Too short."])
    (tmp_path / "run.toml").write_text(TOML)
    assert main(["prepare", "corpus", str(tmp_path / "run.toml")]) == 0
    said = capsys.readouterr().out
    assert "nothing is left of two.jsonl\n" in said
    assert said.endswith('[[data.train]]\ndataset = "corpus"\nsubset = "one.jsonl"\n')
    assert "two.jsonl/*.parquet" not in (tmp_path / "corpus" / "README.md").read_text()


@pytest.mark.parametrize(
    "task", ['name = "swav"', 'name = "chat"\nstart = "a/b@0123456789012345678901234567890123456789"']
)
def test_a_task_without_plain_text_is_refused(tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_in(tmp_path)
    start, end = TOML.index('name = "causal"'), TOML.index("[[data.train]]")
    (tmp_path / "run.toml").write_text(TOML[:start] + task + "\n" + TOML[end:])
    assert main(["prepare", "corpus", str(tmp_path / "run.toml")]) == 2
    assert "learns from no plain text, so there is no corpus to clean" in capsys.readouterr().err
