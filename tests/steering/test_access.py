"""Personal codes and accounts on the Hub: who is let in, and what is said to who is not."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit.cli.main import main
from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.records import INVITATION_FILE, MOST_REFUSED
from dedloc_kit.run import AccessConfig, RunConfig, parse_run
from dedloc_kit.steering import personal_code as personal_code_module
from dedloc_kit.steering.access import (
    HUB_SECONDS,
    Office,
    check_secret,
    invite,
    revoke,
)
from dedloc_kit.steering.codes import Code
from dedloc_kit.steering.denials import Denied, explained
from dedloc_kit.steering.hub_account import whose_token
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.steering.personal_code import personal_code
from tests import invitations
from tests.invitations import Organizer
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.tiny import tiny_run

ORGANIZER, OTHER = invitations.ORGANIZER.peer, invitations.MALLORY.peer
BY_CODE = tiny_run("private", access="invite")
BY_ACCOUNT = tiny_run("members", access={"who": "hub", "accounts": ["Asha"], "organizations": ["neuropark"]})


def launched(folder: Path, run: RunConfig, organizer: Organizer = invitations.ORGANIZER) -> Path:
    """The folder of a coordinator, as far as it matters here."""
    folder.mkdir(exist_ok=True)
    (folder / IDENTITY_FILE).write_bytes(f"the key of {organizer.peer}".encode())
    (folder / INVITATION_FILE).write_text(organizer.invites(run).model_dump_json())
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return launched(tmp_path / "run", BY_CODE)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        served.names = {"hf_asha": "asha", "hf_rahim": "rahim", "hf_mallory": "mallory"}
        served.organizations = {"rahim": ["NeuroPark"], "mallory": ["others"]}
        yield served


def why_not(office: Office, code: str) -> str:
    with pytest.raises(Denied) as denied:
        office.invited(code)
    return denied.value.denial


def test_a_code_lets_its_person_in_until_it_expires(folder: Path) -> None:
    admitted = Office(BY_CODE, folder, ORGANIZER).invited(f"  {invite(folder, 'Alice', days=30)}\n")
    assert admitted.name == "alice"
    assert admitted.until == pytest.approx(time.time() + 30 * 86400, abs=60)


def test_codes_that_are_late_changed_or_of_others_let_nobody_in(folder: Path, tmp_path: Path) -> None:
    office = Office(BY_CODE, folder, ORGANIZER)
    code = invite(folder, "alice", days=30)
    content, mac = base64.urlsafe_b64decode(code + "==")[:-16], base64.urlsafe_b64decode(code + "==")[-16:]
    longer = content.replace(b'"alice"', b'"carol"') + mac
    assert why_not(office, base64.urlsafe_b64encode(longer).decode()) == "forged"
    assert (
        why_not(office, invite(launched(tmp_path / "thief", BY_CODE, invitations.MALLORY), "alice", days=30))
        == "other run"
    )
    other_run = tiny_run("other", access="invite")
    assert why_not(office, invite(launched(tmp_path / "other", other_run), "alice", days=30)) == "other run"
    assert why_not(office, invite(folder, "alice", days=-1)) == "expired"
    assert [why_not(office, text) for text in ("", "alice", code[:-30], code + "é")] == ["no code", *3 * ["unreadable"]]


def test_a_coordinator_with_another_key_cannot_make_codes_of_this_one(folder: Path) -> None:
    code = invite(folder, "alice", days=30)
    (folder / IDENTITY_FILE).write_bytes(b"the key of somebody else")
    assert why_not(Office(BY_CODE, folder, ORGANIZER), code) == "forged"


def test_a_revoked_person_is_out_and_a_new_invitation_counts_again(folder: Path) -> None:
    office, code = Office(BY_CODE, folder, ORGANIZER), invite(folder, "alice", days=30)
    office.admit("QmLaptop", office.invited(code))
    assert office.known("QmLaptop") is not None
    assert office.refused() == ()
    revoke(folder, "ALICE")
    assert why_not(office, code) == "revoked"
    assert office.refused() == ("QmLaptop",)
    with pytest.raises(Denied, match="revoked"):
        office.known("QmLaptop")
    office.admit("QmLaptop", office.invited(invite(folder, "alice", days=30)))
    assert office.refused() == ()
    assert office.known("QmLaptop") is not None


def test_the_newest_refusals_are_told_and_a_kicked_peer_is_one_in_an_open_run_too(tmp_path: Path) -> None:
    folder = launched(tmp_path / "run", tiny_run())
    office, book = Office(tiny_run(), folder, ORGANIZER), OrderBook(folder)
    for number in range(MOST_REFUSED + 1):
        book.kick(f"Qm{number}", "mallory")
    assert len(office.refused()) == MOST_REFUSED
    assert office.refused()[0] == f"Qm{MOST_REFUSED}"
    with pytest.raises(Denied, match="kicked"):
        office.known("Qm0")
    assert office.known("QmOther") is None


@pytest.mark.parametrize(
    ("name", "access", "problem"),
    [("alice", "open", "codes are for runs with access = 'invite'"), ("two words", "invite", "name")],
)
def test_who_cannot_be_invited_is_said(tmp_path: Path, name: str, access: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        invite(launched(tmp_path / "run", tiny_run(access=access)), name, days=30)


def test_a_name_that_was_never_invited_cannot_be_revoked_and_the_others_are_told(folder: Path) -> None:
    invite(folder, "alice", days=30)
    with pytest.raises(UserError, match="nobody was invited as 'alcie'; invited: alice"):
        revoke(folder, "alcie")


def test_the_command_prints_a_code_and_a_folder_without_a_run_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["invite", "alice", str(folder), "--days", "7"]) == 0
    told, code = capsys.readouterr().out.strip().splitlines()
    assert "alice" in told
    assert Office(BY_CODE, folder, ORGANIZER).invited(code).name == "alice"
    assert main(["revoke", "alice", str(folder)]) == 0
    assert main(["invite", "alice", str(tmp_path)]) == 2
    assert "launch it first" in capsys.readouterr().err


def test_a_damaged_file_lets_nobody_in_by_mistake(folder: Path) -> None:
    code = invite(folder, "alice", days=30)
    (folder / "access.json").write_text('{"revoked": ')
    with pytest.raises(UserError, match="is damaged"):
        Office(BY_CODE, folder, ORGANIZER).invited(code)


# Accounts on the Hub


def test_listed_accounts_and_members_of_listed_organizations_may_join(hub: LoopbackHub, tmp_path: Path) -> None:
    office = Office(BY_ACCOUNT, launched(tmp_path / "run", BY_ACCOUNT), ORGANIZER)
    for token in ("hf_asha", "hf_rahim"):
        account, organizations, _ = whose_token(token)
        assert office.member(account, organizations).until == pytest.approx(time.time() + HUB_SECONDS, abs=60)
    account, organizations, _ = whose_token("hf_mallory")
    with pytest.raises(Denied, match="not listed"):
        office.member(account, organizations)
    revoke(tmp_path / "run", "Asha")
    with pytest.raises(Denied, match="revoked"):
        office.member("asha", frozenset())


def test_a_token_that_the_hub_refuses_and_a_hub_that_is_down_are_told_apart(hub: LoopbackHub) -> None:
    for nonsense in ("hf_nobody", "two\nlines", "\u0985"):
        with pytest.raises(Denied, match="token refused"):
            whose_token(nonsense)
    hub.failing.set()
    with pytest.raises(Denied, match="hub down"):
        whose_token("hf_asha")


def test_a_token_with_which_more_can_be_done_than_read_is_not_handed_out(hub: LoopbackHub) -> None:
    check_secret("hf_asha", BY_ACCOUNT, ORGANIZER)
    hub.roles["hf_asha"] = "write"
    with pytest.raises(NotWelcome, match="may change things"):
        check_secret("hf_asha", BY_ACCOUNT, ORGANIZER)


def test_a_code_is_not_handed_to_a_coordinator_that_did_not_make_it(folder: Path) -> None:
    code = invite(folder, "alice", days=30)
    check_secret(code, BY_CODE, ORGANIZER)
    with pytest.raises(NotWelcome, match="another run"):
        check_secret(code, BY_CODE, OTHER)


def test_every_denial_is_one_sentence_and_only_what_passes_may_be_tried_again(hub: LoopbackHub) -> None:
    assert isinstance(explained("kicked"), NotWelcome)
    assert not isinstance(explained("hub down"), NotWelcome)
    assert "\n" not in str(explained("no token"))


# What the configuration says


def test_access_is_open_unless_the_run_says_otherwise_and_one_word_is_enough() -> None:
    assert tiny_run().access == AccessConfig(who="open")
    assert BY_CODE.access.who == "invite"
    assert parse_run(json.loads(BY_ACCOUNT.canonical())) == BY_ACCOUNT
    assert len({tiny_run("x").fingerprint, tiny_run("x", access="invite").fingerprint}) == 2


@pytest.mark.parametrize("access", ["closed", {"who": "hub"}, {"who": "invite", "accounts": ["asha"]}, {"whom": "all"}])
def test_an_access_that_makes_no_sense_is_refused_by_name(access: object) -> None:
    with pytest.raises(UserError, match="access"):
        tiny_run(access=access)


# The volunteer's side


def test_a_code_is_taken_from_a_file_or_the_environment_and_asked_for_only_where_it_is_needed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.delenv("DEDLOC_CODE", raising=False)

    def typed(question: str) -> str:
        questions.append(question)
        return " typed "

    monkeypatch.setattr(personal_code_module, "getpass", typed)
    closed, open_ = str(folder / INVITATION_FILE), str(launched(tmp_path / "open", tiny_run()) / INVITATION_FILE)
    assert (personal_code(open_, ask=True), personal_code(closed, ask=False)) == ("", "")
    assert not questions
    assert personal_code(closed, ask=True) == "typed"
    monkeypatch.setenv("DEDLOC_CODE", "kept")
    (tmp_path / "code").write_text("in a file\n")
    assert personal_code(closed, ask=True) == "kept"
    assert personal_code(closed, file=tmp_path / "code", ask=True) == "in a file"
    with pytest.raises(UserError, match="should hold your personal code"):
        personal_code(closed, file=tmp_path / "none", ask=True)
    assert len(questions) == 1


def test_what_a_code_says_can_be_read_by_its_owner(folder: Path) -> None:
    assert Code.read(invite(folder, "alice", days=30)).name == "alice"
