"""Who may join a run: the organizer's personal codes, accounts on the Hub, and what the coordinator's folder keeps.

A code is a secret that is worth something to this run's coordinator only: it carries a keyed hash (HMAC-SHA256) that
nobody can make without the coordinator's key. It also names the run and the coordinator, so that a volunteer's machine
hands it to no other.
"""

import base64
import fcntl
import hashlib
import hmac
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from dedloc_kit.account import CODE
from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.orders import OrderBook
from dedloc_kit.records import INVITATION_FILE, MOST_REFUSED, Denial, Invitation, PeerId, Record, Time
from dedloc_kit.run import HubName, RunConfig
from dedloc_kit.validation import describe

DAY = 86400.0
HUB_SECONDS = 30 * DAY
"""After this long an account must be shown again: it may have left the organization."""
HUB_PATIENCE = 10.0
IDENTITY_FILE = "identity.key"
_MAC_BYTES = 16
R = TypeVar("R", bound=Record)
_BOOK, _LOCK, _ADMITTED = "access.json", ".access.lock", "admitted.json"

_DENIALS: dict[Denial, str] = {
    "no code": (
        f"this run is by invitation: ask the organizer for your personal code, and give it when asked or as {CODE}"
    ),
    "no token": (
        "this run admits accounts of the Hugging Face Hub: make a token of the kind 'Read' at "
        f"huggingface.co/settings/tokens and give it when asked or as {CODE}; it is looked at once and not kept"
    ),
    "unreadable": "this is not a code: it may not be all of it; copy it again, from beginning to end",
    "forged": "this code is not one of this run's organizer; copy it again, or ask for a new one",
    "expired": "your invitation has expired; ask the organizer for a new code",
    "revoked": "the organizer has withdrawn your invitation; ask them if you think that this is a mistake",
    "other run": "this code is for another run; ask the organizer for one for this run",
    "kicked": "the organizer has sent this machine away; ask them if you think that this is a mistake",
    "not listed": "your account on the Hub is not among those that may join; ask the organizer to add it",
    "token refused": "the Hub refuses your token; make a new one of the kind 'Read' at huggingface.co/settings/tokens",
    "hub down": "the Hub does not tell the coordinator now whose token this is; try again in some minutes",
    "busy": "the coordinator is looking at many newcomers; try again in a minute",
}


class Denied(Exception):
    """A peer is not let in; for the coordinator's own use."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(denial)
        self.denial: Denial = denial


def explained(denial: Denial) -> UserError:
    """What a denial means to a volunteer."""
    passing = denial in ("hub down", "busy")
    return UserError(_DENIALS[denial]) if passing else NotWelcome(_DENIALS[denial])


class Code(Record):
    """What a personal code says."""

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """The run's fingerprint."""
    organizer: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """A digest of the coordinator's peer id."""
    name: HubName
    minted: Time
    expires: Time

    @classmethod
    def read(cls, text: str) -> "Code":
        """What a code says, true or not; raises NotWelcome if it is none."""
        try:
            return cls.model_validate_json(_decoded(text)[:-_MAC_BYTES])
        except ValueError:
            raise explained("unreadable") from None

    def check(self, run: RunConfig, organizer: str) -> None:
        """Raises NotWelcome unless it is meant for this run and coordinator: no other may see it."""
        if (self.run, self.organizer) != (run.fingerprint, _digest(organizer)):
            raise explained("other run")


class Issued(Record):
    """An invitation that the organizer has given to somebody."""

    minted: Time
    expires: Time


class Book(Record):
    """`access.json` in the coordinator's folder: only the command line writes it."""

    invited: dict[HubName, Issued] = Field(default={})
    revoked: dict[HubName, Time] = Field(default={})
    """When somebody's invitation was withdrawn; a later one counts."""


class Admitted(Record):
    """A peer that was let in."""

    name: str
    minted: Time
    """When its code was made; that of its admission for an account on the Hub."""
    until: Time


class Admissions(Record):
    """`admitted.json` in the coordinator's folder: only the coordinator writes it."""

    peers: dict[PeerId, Admitted] = Field(default={})


def invite(folder: Path, name: str, days: float) -> str:
    """A new personal code, valid from now for so many days; it takes the place of earlier ones only if these were
    revoked. Raises UserError with what to do."""
    invitation = _invitation(folder)
    run = invitation.run_config()
    if run.access.who != "invite":
        raise UserError(
            f"{run.run_id} admits by access = {run.access.who!r}; codes are for runs with access = 'invite', which "
            "run.toml must say before the launch"
        )
    try:
        code = Code(
            run=run.fingerprint,
            organizer=_digest(invitation.organizer),
            name=name.lower(),
            minted=round(time.time(), 3),
            expires=round(time.time() + days * DAY, 3),
        )
    except ValidationError as error:
        raise UserError(f"nobody can be invited like this: {describe(error, Code)}") from None
    with _book(folder) as book:
        book["invited"] = {**book["invited"], code.name: {"minted": code.minted, "expires": code.expires}}
    content = code.model_dump_json().encode()
    return base64.urlsafe_b64encode(content + _mac(_secret(folder), content)).decode().rstrip("=")


def revoke(folder: Path, name: str) -> None:
    """Withdraw somebody's invitations; raises UserError if there are none."""
    run, name = _invitation(folder).run_config(), name.lower()
    if run.access.who == "open":
        raise UserError(f"{run.run_id} is open to all, nobody was invited; 'dedloc kick' sends a peer away")
    with _book(folder) as book:
        if run.access.who == "invite" and name not in book["invited"]:
            known = ", ".join(sorted(book["invited"])) or "nobody so far"
            raise UserError(f"nobody was invited as '{name}'; invited: {known}")
        book["revoked"] = {**book["revoked"], name: time.time()}


class Office:
    """Decides in the coordinator who is let in. Not for several threads at once."""

    def __init__(self, run: RunConfig, folder: Path, organizer: str) -> None:
        """:param organizer: the coordinator's peer id"""
        self._run, self._folder, self._organizer = run, folder, organizer
        self._orders = OrderBook(folder)

    def known(self, peer: str) -> Admitted | None:
        """Whether this peer was let in before and still may take part; raises Denied if it may no more."""
        if peer in self._orders.read().kicked_peers:
            raise Denied("kicked")
        admitted = self._admissions().peers.get(peer)
        return None if admitted is None else self._valid(admitted)

    def invited(self, secret: str) -> Admitted:
        """Whom this code was given to; raises Denied."""
        if not secret:
            raise Denied("no code")
        try:
            code, data = Code.read(secret), _decoded(secret)
        except UserError:
            raise Denied("unreadable") from None
        if (code.run, code.organizer) != (self._run.fingerprint, _digest(self._organizer)):
            raise Denied("other run")
        if not hmac.compare_digest(_mac(_secret(self._folder), data[:-_MAC_BYTES]), data[-_MAC_BYTES:]):
            raise Denied("forged")
        return self._valid(Admitted(name=code.name, minted=code.minted, until=code.expires))

    def member(self, account: str, organizations: frozenset[str]) -> Admitted:
        """Whether this account on the Hub, with its organizations, may join; raises Denied."""
        account, access = account.lower(), self._run.access
        shared = {name.lower() for name in access.organizations} & {name.lower() for name in organizations}
        if not shared and account not in {name.lower() for name in access.accounts}:
            raise Denied("not listed")
        if account in self._read_book().revoked:
            raise Denied("revoked")
        now = time.time()
        return Admitted(name=account, minted=now, until=now + HUB_SECONDS)

    def admit(self, peer: str, admitted: Admitted) -> None:
        """Remember that this peer was let in."""
        peers = {**self._admissions().peers, peer: admitted}
        kept = {p: a for p, a in peers.items() if a.until > time.time()}
        _write(self._folder / _ADMITTED, Admissions(peers=kept))

    def refused(self) -> tuple[str, ...]:
        """Peers that may not take part any more, the newest cases only if there are many.

        In a run that is not open the others have no valid token any more: there tokens last for less time than
        it takes so many cases.
        """
        cases = [(kicked.time, kicked.peer) for kicked in self._orders.read().kicked]
        if self._run.access.who != "open":
            revoked = self._read_book().revoked
            for peer, admitted in self._admissions().peers.items():
                if revoked.get(admitted.name, -1.0) >= admitted.minted:
                    cases.append((revoked[admitted.name], peer))
        return tuple(dict.fromkeys(peer for _, peer in sorted(cases, reverse=True)))[:MOST_REFUSED]

    def _valid(self, admitted: Admitted) -> Admitted:
        if self._read_book().revoked.get(admitted.name, -1.0) >= admitted.minted:
            raise Denied("revoked")
        if admitted.until <= time.time():
            raise Denied("expired")
        return admitted

    def _admissions(self) -> Admissions:
        return _read(self._folder / _ADMITTED, Admissions)

    def _read_book(self) -> Book:
        return _read(self._folder / _BOOK, Book)


def whose_token(token: str) -> tuple[str, frozenset[str], bool]:
    """The account of a token of the Hub, its organizations, and whether the token can only read.

    Raises Denied if the Hub refuses the token or does not answer.
    """
    import requests
    from huggingface_hub import constants

    try:
        answer = requests.get(
            f"{constants.ENDPOINT}/api/whoami-v2",
            headers={"Authorization": f"Bearer {token}"},
            timeout=HUB_PATIENCE,
            allow_redirects=False,
        )
    except ValueError:  # what cannot be in a header is no token
        raise Denied("token refused") from None
    except requests.RequestException:
        raise Denied("hub down") from None
    if answer.status_code in (401, 403):
        raise Denied("token refused")
    try:
        told: dict[str, Any] = answer.json()
        organizations = frozenset(str(organization["name"]) for organization in told.get("orgs", ()))
        return str(told["name"]), organizations, _reads_only(told)
    except (ValueError, LookupError, TypeError):
        raise Denied("hub down") from None


def _reads_only(told: dict[str, Any]) -> bool:
    token = told["auth"]["accessToken"]
    if token["role"] != "fineGrained":
        return bool(token["role"] == "read")
    scoped = token["fineGrained"]
    permissions = [*scoped.get("global", ()), *(p for scope in scoped.get("scoped", ()) for p in scope["permissions"])]
    return all(str(permission).endswith(".read") for permission in permissions)


def check_secret(secret: str, run: RunConfig, organizer: str) -> None:
    """Before a volunteer's machine hands its secret to the coordinator; raises UserError if it should not.

    A code goes to the coordinator that made it only, and no token of the Hub with which more could be done than read.
    """
    if not secret or run.access.who == "open":
        return
    if run.access.who == "invite":
        Code.read(secret).check(run, organizer)
        return
    try:
        _, _, reads_only = whose_token(secret)
    except Denied as denied:
        raise explained(denied.denial) from None
    if not reads_only:
        raise NotWelcome(
            "your token of the Hub may change things, so it is not shown to the coordinator; make one of the kind "
            "'Read' at huggingface.co/settings/tokens and give that"
        )


def _digest(peer: str) -> str:
    return hashlib.sha256(peer.encode()).hexdigest()[:16]


def _decoded(text: str) -> bytes:
    """Raises ValueError."""
    compact = "".join(text.split())
    return base64.b64decode(compact + "=" * (-len(compact) % 4), altchars=b"-_", validate=True)


def _secret(folder: Path) -> bytes:
    """The key for codes, which only whoever has the coordinator's own can make."""
    try:
        return hmac.digest((folder / IDENTITY_FILE).read_bytes(), b"dedloc_kit personal codes", "sha256")
    except OSError as error:
        raise UserError(
            f"{folder / IDENTITY_FILE} cannot be read ({error.strerror}); is this the run's folder?"
        ) from None


def _mac(secret: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, content, "sha256")[:_MAC_BYTES]


def _invitation(folder: Path) -> Invitation:
    try:
        return Invitation.parse((folder / INVITATION_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise UserError(
            f"{folder} is not the folder of a run that was launched here; launch it first, its folder is runs/RUN-ID"
        ) from None


@contextmanager
def _book(folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """The book's values, to be changed; written at the end."""
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = _read(folder / _BOOK, Book).model_dump()
            yield values
            _write(folder / _BOOK, Book.parse(values))
    except OSError as error:
        raise UserError(f"{folder / _BOOK} cannot be written ({error.strerror}); check its permissions") from None


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return kind()
    except (ValidationError, UnicodeDecodeError) as error:
        why = describe(error, kind) if isinstance(error, ValidationError) else "no UTF-8"
        raise UserError(f"{path} is damaged ({why}); repair it") from None


def _write(path: Path, record: Record) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(record.model_dump_json(indent=1), encoding="utf-8")
    os.replace(temporary, path)
