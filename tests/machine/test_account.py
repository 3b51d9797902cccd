"""Who a volunteer is, and that the token that says so is seen by nobody."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dedloc_kit.machine import account as account_module
from dedloc_kit.machine.account import Account, cleaned, token, who_am_i
from tests.loopback_hub import LoopbackHub, loopback_hub

SECRET = "hf_of-a-test"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which nobody is logged in."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        served.names[SECRET] = "asha"
        monkeypatch.setenv("HF_TOKEN", SECRET)
        yield served


def test_the_name_is_the_one_on_the_hub_and_the_token_is_for_the_child_alone(hub: LoopbackHub, tmp_path: Path) -> None:
    account = who_am_i(None, tmp_path)
    assert account == Account("asha", anonymous=False, token=SECRET)
    assert SECRET not in repr(account)
    assert account.environment() == {"HF_TOKEN": SECRET}
    assert SECRET not in "".join(path.read_text() for path in tmp_path.iterdir() if path.is_file())


def test_a_chosen_name_wins(hub: LoopbackHub, tmp_path: Path) -> None:
    assert who_am_i("  Asha\nfrom\x1b[31m Dhaka ", tmp_path).name == "Asha from [31m Dhaka"
    assert who_am_i("\n", tmp_path).name == "asha"


def test_a_name_keeps_its_joiners_and_its_length_is_limited() -> None:
    indic = "\u09b0\u200d\u09cd\u09af"
    assert cleaned(indic) == indic
    assert len(cleaned("x" * 100)) == 64


def test_without_a_token_one_is_anonymous_or_whom_one_chose(tmp_path: Path) -> None:
    assert token() is None
    assert who_am_i(None, tmp_path) == Account("anonymous", anonymous=True)
    assert who_am_i("Asha", tmp_path) == Account("Asha", anonymous=False)


def test_a_refused_token_is_told_once_and_used_for_nothing(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who_am_i(None, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_of-yesterday")
    account = who_am_i(None, tmp_path)
    assert (account.name, account.anonymous, account.token) == ("anonymous", True, None)
    assert account.warning is not None
    assert "settings/tokens" in account.warning
    assert "of-yesterday" not in account.warning
    # The worker would find the very same token by itself.
    assert account.environment()["HF_TOKEN"] == ""
    assert account.environment()["HF_HUB_DISABLE_IMPLICIT_TOKEN"] == "1"


def test_while_the_hub_does_not_answer_the_name_of_the_last_time_counts(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.failing.set()
    first = who_am_i(None, tmp_path)
    assert (first.anonymous, first.token, first.warning) == (True, SECRET, None)
    hub.failing.clear()
    who_am_i(None, tmp_path)
    monkeypatch.setattr(account_module, "ASKING_SECONDS", 0.2)
    hub.silent.set()
    assert who_am_i(None, tmp_path).name == "asha"
    monkeypatch.delenv("HF_TOKEN")
    assert who_am_i(None, tmp_path).anonymous, "who took the token away wants to be nobody"


class NoSuchSecret(Exception):
    pass


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    made = ModuleType(name)
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.mark.parametrize(("outcome", "found"), [(SECRET, SECRET), (NoSuchSecret("HF_TOKEN"), None)])
def test_kaggles_secret_is_taken(monkeypatch: pytest.MonkeyPatch, outcome: Any, found: str | None) -> None:
    class UserSecretsClient:
        def get_secret(self, label: str) -> str:
            assert label == "HF_TOKEN"
            if isinstance(outcome, Exception):
                raise outcome
            return f"{outcome}\n"

    module(monkeypatch, "kaggle_secrets", UserSecretsClient=UserSecretsClient)
    assert token() is None, "not elsewhere"
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    assert token() == found


@pytest.mark.parametrize("outcome", [SECRET, "missing", "not granted", "silent"])
def test_colabs_secret_is_taken_by_the_hubs_library(
    monkeypatch: pytest.MonkeyPatch, outcome: str, recwarn: pytest.WarningsRecorder
) -> None:
    class NotebookAccessError(Exception):
        pass

    def get(key: str) -> str:
        assert key == "HF_TOKEN"
        if outcome == SECRET:
            return outcome
        raise {"missing": NoSuchSecret, "not granted": NotebookAccessError, "silent": TimeoutError}[outcome]

    userdata = ModuleType("google.colab.userdata")
    vars(userdata).update(get=get, NotebookAccessError=NotebookAccessError, SecretNotFoundError=NoSuchSecret)
    module(monkeypatch, "google")
    module(monkeypatch, "google.colab", userdata=userdata)
    module(monkeypatch, "google.colab.errors", Error=NoSuchSecret)
    monkeypatch.setitem(sys.modules, "google.colab.userdata", userdata)
    monkeypatch.setattr("huggingface_hub.utils._auth.is_google_colab", lambda: True)
    monkeypatch.setattr("huggingface_hub.utils._auth._IS_GOOGLE_COLAB_CHECKED", False)
    monkeypatch.setattr("huggingface_hub.utils._auth._GOOGLE_COLAB_SECRET", None)
    assert token() == (SECRET if outcome == SECRET else None)
    assert not recwarn.list
