"""What people paste is checked where it comes in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from dedloc_kit.access.own_code import personal_code
from dedloc_kit.cli.main import main
from dedloc_kit.client import fetch_invitation
from dedloc_kit.config.loading import load_run
from dedloc_kit.errors import UserError
from dedloc_kit.hub import Repository, model_files
from dedloc_kit.learning.data.sources.hub_files import commit_of
from dedloc_kit.learning.data.sources.patience import be_patient
from dedloc_kit.machine.account import CODE, who_am_i
from dedloc_kit.machine.hidden_characters import unseen, why_no_token
from dedloc_kit.steering.webhook import webhook_address
from tests.commands import run_file
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.tiny import tiny_run

TOKENS = {
    "an ellipsis": ("hf_abc…xyz", "horizontal ellipsis"),
    "a dot of a hidden one": ("hf_abc•xyz", "bullet"),
    "a zero-width space": ("hf_abcxyz\u200b", "zero width space"),
    "quotes": ('"hf_abcxyz"', "quotation mark"),
    "a line of a file": ("HF_TOKEN=hf_abcxyz", "equals sign"),
    "asterisks": ("hf_****", "asterisk"),
    "a space": ("hf_abc xyz", "space"),
    "three dots": ("hf_abc...xyz", "a part of it is missing"),
    "the end of the sentence": ("hf_abcxyz.", "a part of it is missing"),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    for name in ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.commits["us/model"] = [{"model.safetensors": b"weights"}]
        hub.commits["datasets/us/data"] = [{"train.jsonl": b'{"text": "a"}\n'}]
        yield hub


@pytest.mark.parametrize("kind", TOKENS)
def test_what_cannot_be_a_token_is_named_and_public_things_are_read_without_it(
    kind: str, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token, why = TOKENS[kind]
    monkeypatch.setenv("HF_TOKEN", token)
    hub.refused = token  # what fits into a request is refused there
    account = who_am_i(None, tmp_path)
    assert account.token is None
    assert account.warning is not None
    assert "cannot be one" in account.warning
    assert why in account.warning
    assert token not in account.warning
    with pytest.raises(UserError, match="cannot be one, so us/model cannot be written"):
        Repository("us/model").claim(tiny_run())
    assert (model_files("us/model", "main", ["model*"]) / "model.safetensors").read_bytes() == b"weights"
    told = [record.getMessage() for record in caplog.records if "cannot be one" in record.getMessage()]
    assert len(told) == 1
    assert why in told[0]


def test_public_data_is_read_without_what_cannot_be_a_token(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abc…xyz")
    be_patient()
    assert commit_of("us/data", None) == hub.revision("datasets/us/data")


def test_tokens_as_there_are_pass() -> None:
    assert not any(map(why_no_token, ("hf_abcXYZ", "api_org_abc", "hf_oauth_eyJh.eyJz-_.c2ln", "of-a-test")))


def test_a_code_an_address_and_a_name_with_what_nobody_sees_are_named(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CODE, "abc\u200bdef")
    with pytest.raises(UserError, match=r"the code in DEDLOC_CODE .*zero width space"):
        personal_code("us/model", ask=False)
    (tmp_path / "code").write_text("\ufeffabc\ndef\n", encoding="utf-8")
    assert personal_code("us/model", file=tmp_path / "code", ask=False) == "abc\ndef"
    (tmp_path / "code").write_text("abc…\n", encoding="utf-8")
    with pytest.raises(UserError, match="horizontal ellipsis"):
        personal_code("us/model", file=tmp_path / "code", ask=False)
    for where in ("http://example.org:8000\u200b/", "us/\u2060model", "us/model\u00a0", " us/model", "us/mo\u200ddel"):
        with pytest.raises(UserError, match="a character that does not belong there"):
            fetch_invitation(where)
        assert main(["join", where]) == 2
        assert "a character that does not belong there" in capsys.readouterr().err
    with pytest.raises(UserError, match="soft hyphen"):
        Repository("us/mo\u00addel").claim(tiny_run())
    (tmp_path / "hook").write_text("https://hooks.example.org/\u200babc", encoding="utf-8")
    with pytest.raises(UserError, match="zero width space"):
        webhook_address(tmp_path / "hook")


def test_a_name_in_a_run_s_file_with_what_nobody_sees_is_named(tmp_path: Path) -> None:
    for name in ("us/da\u200bta", "./corp\u00adus"):
        with pytest.raises(UserError, match=r"does not belong there: (zero width space|soft hyphen)"):
            load_run(run_file(tmp_path, dataset=name))


def test_a_name_keeps_its_joiners_and_a_path_what_it_has(tmp_path: Path) -> None:
    assert unseen("র\u200d্য") == ""
    assert unseen("a path with spaces") == ""
    odd = tmp_path / "an\u00a0invitation.json"
    odd.write_text("{}")
    with pytest.raises(UserError) as refused:
        fetch_invitation(str(odd))
    assert "does not belong" not in str(refused.value)
