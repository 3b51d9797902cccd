"""`coordinator.toml`: what a coordinator is told that nobody types each time."""

import re
from pathlib import Path

import pytest

from dedloc_kit.cli.commands.launch import chosen
from dedloc_kit.cli.main import main, parser
from dedloc_kit.config.coordinator import TYPED, in_file_only, keys, settings_beside, template
from dedloc_kit.config.machine import CoordinatorConfig, LaunchOptions, parsed
from dedloc_kit.config.option import options_of
from dedloc_kit.errors import UserError
from tests.golden.reference import coordinator

MOST_OPTIONS = 14
FIELDS = {name: field for kind in (LaunchOptions, CoordinatorConfig) for name, field, _ in options_of(kind)}


def beside(folder: Path, text: str) -> Path:
    """The path of a run whose coordinator's file has this text."""
    (folder / "coordinator.toml").write_text(text, encoding="utf-8")
    return folder / "run.toml"


def test_an_organizer_types_at_most_fourteen_options_and_all_others_stand_in_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--help"])
    told = capsys.readouterr().out
    options = {*re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE)}
    assert len(options) <= MOST_OPTIONS
    assert {f"--{name.replace('_', '-')}" for name in TYPED} == options - {"--overrides"}
    assert {*in_file_only(), *TYPED} == {*FIELDS}
    words = {*re.findall(r"\w+", told)}
    assert {*in_file_only()} <= words
    assert "coordinator.toml beside RUN.toml, which 'dedloc init' writes" in " ".join(told.split())
    assert "last three checkpoints stay, the best one, and the last one of each of the last seven days" in " ".join(
        told.split()
    )


def test_the_file_that_is_written_says_every_default(tmp_path: Path) -> None:
    text = template()
    assert settings_beside(beside(tmp_path, text)) == {}
    lines = re.findall(r"^# (\w+) = (.+)$", text, re.MULTILINE)
    assert {name for name, _ in lines} == {*FIELDS} - {"folder", "resume"}
    with_defaults = [name for name, _ in lines if FIELDS[name].default is not None]
    uncommented = "\n".join(f"{name} = {value}" for name, value in lines if name in with_defaults)
    assert settings_beside(beside(tmp_path, uncommented)) == {name: FIELDS[name].default for name in with_defaults}


def test_every_key_stands_in_the_reference() -> None:
    assert re.findall(r"^\| `(\w+)`", coordinator(), re.MULTILINE) == [*keys()]


def test_paths_are_seen_from_the_folder_of_the_file(tmp_path: Path) -> None:
    run = beside(tmp_path, 'tls_cert = "chain.pem"\nregions = "/geo/x.mmdb"\nstages_memory = 4\n')
    found = settings_beside(run)
    assert found == {"tls_cert": tmp_path / "chain.pem", "regions": Path("/geo/x.mmdb"), "stages_memory": 4.0}


def test_what_is_typed_counts_more(tmp_path: Path) -> None:
    kept = settings_beside(beside(tmp_path, 'port = 7\nhub = "us/ours"\nevaluate_every = 3\nstall_minutes = 9\n'))
    options = parser().parse_args(["launch", "run.toml", "--port", "8", "--folder", "kept"])
    launched = parsed(LaunchOptions, chosen(LaunchOptions, kept, options))
    peer = parsed(CoordinatorConfig, chosen(CoordinatorConfig, kept, options))
    assert (launched.port, launched.stall_minutes) == (8, 9)
    assert (peer.folder, peer.hub, peer.evaluate_every) == (Path("kept"), "us/ours", 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("evalaute_every = 3", "evalaute_every is not a known key; did you mean 'evaluate_every'?"),
        ("folder = 'x'", "folder is not a known key"),
        ("[page]\nport = 3", "page is not a known key"),
        ("evaluate_every = 0", "evaluate_every: input should be greater than or equal to 1, not 0"),
        ("evaluate_every = '3'", "evaluate_every: input should be a valid integer, not '3'"),
        ("private = 1", "private: input should be a valid boolean, not 1"),
        ("port = 99999", "port: must be a TCP port, from 0 to 65535, not 99999"),
        ("hub = 'ours'", "hub: must be OWNER/NAME, not 'ours'"),
        ("regions = 3", "regions: must be a path, in quotes, not 3"),
        ("url = 'http://[::1'", "url: must be an address"),
        ("url = 'http://h:99999'", "url: must be an address"),
        (f"push_every = {'9' * 5000}", "is not valid TOML"),
        (f"push_every = {'[' * 5000}", "nested too deeply"),
        ("push_every = 2026-11-29", "push_every: "),
        ("push_every =", "is not valid TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        settings_beside(beside(tmp_path, text))
    assert str(refused.value).startswith(str(tmp_path / "coordinator.toml"))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_link_to_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "coordinator.toml").symlink_to("coordinator.toml")
    with pytest.raises(UserError, match=r"coordinator\.toml cannot be read"):
        settings_beside(tmp_path / "run.toml")
    (tmp_path / "coordinator.toml").unlink()
    (tmp_path / "coordinator.toml").symlink_to("elsewhere.toml")
    with pytest.raises(UserError, match=r"coordinator\.toml does not exist"):
        settings_beside(tmp_path / "run.toml")


def test_a_run_alone_is_led_by_the_defaults(tmp_path: Path) -> None:
    assert settings_beside(tmp_path / "run.toml") == {}
