"""Personal codes and accounts on the Hub: who is let in, and what is said to who is not."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hivemind.utils import MSGPackSerializer

from dedloc_kit.access import admission as access
from dedloc_kit.access import own_code as personal_code_module
from dedloc_kit.access.admission import (
    DAY,
    HUB_SECONDS,
    PASS_SECONDS,
    Office,
    check_secret,
    invite,
    revoke,
)
from dedloc_kit.access.codes import MACHINES, Code
from dedloc_kit.access.denials import Denied, explained
from dedloc_kit.access.hub_account import whose_token
from dedloc_kit.access.own_code import personal_code
from dedloc_kit.cli.main import main
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.trust import AccessConfig
from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.orders import MAX_REFUSED, Notice
from dedloc_kit.steering.orders import ORDERS_FILE, Kicked, OrderBook, Orders
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


def kicked_again_and_again(folder: Path, times: int, since: float) -> None:
    """As if the organizer had kicked so many, one a second."""
    kicked = tuple(Kicked(peer=f"Qm{number}", name="mallory", time=since + number) for number in range(times))
    (folder / ORDERS_FILE).write_text(Orders(kicked=kicked).model_dump_json())


@pytest.mark.parametrize("times", [201, 1500])
def test_in_an_open_run_the_coordinator_refuses_all_that_were_kicked_and_its_notice_names_the_newest(
    tmp_path: Path, times: int
) -> None:
    folder = launched(tmp_path / "run", tiny_run())
    kicked_again_and_again(folder, times - 1, time.time() - 30 * DAY)
    office = Office(tiny_run(), folder, ORGANIZER)
    assert len(office.refused()) == times - 1
    OrderBook(folder).kick("QmLast", "mallory")
    assert office.refused()[0] == "QmLast"
    assert set(office.refused()) == {"QmLast", *(f"Qm{number}" for number in range(times - 1))}
    for peer in ("Qm0", "QmLast"):
        with pytest.raises(Denied, match="kicked"):
            office.known(peer)
    assert office.known("QmOther") is None
    notice = Notice.parse({"run_id": "x", "time": 1.0, "refused": office.refused()})
    named = [peer for peer in office.refused() if notice.refuses(peer)]
    assert named == list(office.refused()[:MAX_REFUSED])
    assert not notice.refuses("QmOther")
    assert len(MSGPackSerializer.dumps(notice.model_dump())) < 11_000


def test_elsewhere_a_notice_names_only_those_who_may_still_have_a_valid_token(folder: Path) -> None:
    kicked_again_and_again(folder, 3000, time.time() - 3000 - PASS_SECONDS + 600)
    office = Office(BY_CODE, folder, ORGANIZER)
    assert len(office.refused()) == pytest.approx(600, abs=60)
    assert office.refused()[0] == "Qm2999"
    with pytest.raises(Denied, match="kicked"):
        office.known("Qm0")


def test_a_notice_of_before_is_still_read() -> None:
    old = {"run_id": "x", "time": 1.0, "refused": ("QmA", "QmB")}
    notice = Notice.parse(MSGPackSerializer.loads(MSGPackSerializer.dumps(old)))
    assert [notice.refuses(peer) for peer in ("QmA", "QmB", "QmC", "")] == [True, True, False, False]
    assert not Notice(run_id="x", time=1.0).refuses("QmA")


# How many


def test_a_code_lets_so_many_machines_in_and_more_only_when_one_has_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(access, "time", SimpleNamespace(time=lambda: now))
    office, code = Office(BY_CODE, folder, ORGANIZER), invite(folder, "alice", days=30, machines=2)
    for peer in ("QmA", "QmB"):
        office.admit(peer, office.invited(code))
    now += PASS_SECONDS - 1
    assert office.known("QmB") is not None, "it asks for its next token"
    with pytest.raises(Denied, match="too many machines"):
        office.admit("QmC", office.invited(code))
    assert office.crowded() == {"alice"}
    office.admit("QmB", office.invited(code))
    office.admit("QmBob", office.invited(invite(folder, "bob", days=30, machines=1)))
    now += 2
    office.admit("QmC", office.invited(code))
    assert [office.known(peer) is not None for peer in ("QmA", "QmB", "QmC", "QmBob")] == [False, True, True, True]
    with pytest.raises(Denied, match="too many machines"):
        Office(BY_CODE, folder, ORGANIZER).admit("QmA", office.invited(code))
    revoke(folder, "alice")
    now += 1
    office.admit("QmD", office.invited(invite(folder, "alice", days=30, machines=1)))


def test_codes_of_before_say_nothing_of_machines(folder: Path) -> None:
    code = invite(folder, "alice", days=30)
    data = json.loads(base64.urlsafe_b64decode(code + "==")[:-16])
    del data["machines"]
    assert Code.model_validate_json(json.dumps(data)).machines == MACHINES


def test_a_question_costs_the_same_however_many_were_let_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    whole = Path.read_text

    def counted(path: Path, **how: str) -> str:
        reads.append(path.name)
        return whole(path, **how)

    monkeypatch.setattr(Path, "read_text", counted)
    office, code = Office(BY_CODE, folder, ORGANIZER), invite(folder, "alice", days=30)
    office.admit("QmA", office.invited(code))
    reads.clear()
    for number in range(100):
        assert office.known(f"Qm{number}") is None
    assert len(reads) <= 3, "each file once, if it has changed"
    reads.clear()
    assert office.known("QmA") is not None
    assert not reads
    OrderBook(folder).kick("QmA", "alice")
    with pytest.raises(Denied, match="kicked"):
        office.known("QmA")


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
    assert main(["run", "invite", str(folder), "alice", "--days", "7"]) == 0
    told, code = capsys.readouterr().out.strip().splitlines()
    assert "alice" in told
    assert Office(BY_CODE, folder, ORGANIZER).invited(code).name == "alice"
    assert main(["run", "revoke", str(folder), "alice"]) == 0
    assert main(["run", "invite", str(tmp_path), "alice"]) == 2
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
    assert isinstance(explained("kicked", "it lied"), NotWelcome)
    assert "sent this machine away after its work was checked: it lied; ask" in str(explained("kicked", "it lied"))
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
