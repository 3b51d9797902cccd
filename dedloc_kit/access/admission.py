"""Who may join a run: the organizer's personal codes and accounts on the Hub."""

import time
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from dedloc_kit.access.admitted_store import (
    ADMITTED_FILE,
    BOOK_FILE,
    Admitted,
    changed_book,
    read_admissions,
    read_book,
    write_admissions,
)
from dedloc_kit.access.codes import MACHINES, Code, digest, opened
from dedloc_kit.access.denials import Denied, explained
from dedloc_kit.access.hub_account import whose_token
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.records.admission import TOKEN_SECONDS
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.serving.config import swarm_of
from dedloc_kit.steering.cached_file import Followed
from dedloc_kit.steering.orders import ORDERS_FILE, OrderBook
from dedloc_kit.validation import describe

DAY = 86400.0
HUB_SECONDS = 30 * DAY
"""After this long an account must be shown again: it may have left the organization."""
PASS_SECONDS = TOKEN_SECONDS + 300.0
"""Whoever was sent away longer ago has no valid token any more, clocks that differ allowed for."""


def invite(folder: Path, name: str, days: float, machines: int = MACHINES) -> str:
    """A new personal code, valid from now for so many days and for so many machines at a time; it takes the place of
    earlier ones only if these were revoked. Raises UserError with what to do."""
    invitation = _invitation(folder)
    run = swarm_of(invitation)
    if run.access.who != "invite":
        raise UserError(
            f"{run.run_id} admits by access = {run.access.who!r}; codes are for runs with access = 'invite', which "
            "run.toml must say before the launch"
        )
    try:
        code = Code(
            run=run.fingerprint,
            organizer=digest(invitation.organizer),
            name=name.lower(),
            minted=round(time.time(), 3),
            expires=round(time.time() + days * DAY, 3),
            machines=machines,
        )
    except ValidationError as error:
        raise UserError(f"nobody can be invited like this: {describe(error, Code)}") from None
    with changed_book(folder) as book:
        book["invited"] = {**book["invited"], code.name: {"minted": code.minted, "expires": code.expires}}
    return code.signed(folder)


def revoke(folder: Path, name: str) -> None:
    """Withdraw somebody's invitations; raises UserError if there are none."""
    run, name = swarm_of(_invitation(folder)), name.lower()
    if run.access.who == "open":
        raise UserError(f"{run.run_id} is open to all, nobody was invited; 'dedloc run kick' sends a peer away")
    with changed_book(folder) as book:
        if run.access.who == "invite" and name not in book["invited"]:
            known = ", ".join(sorted(book["invited"])) or "nobody so far"
            raise UserError(f"nobody was invited as '{name}'; invited: {known}")
        book["revoked"] = {**book["revoked"], name: time.time()}


class Office:
    """Decides in the coordinator who is let in. Not for several threads at once.

    Whoever asks costs the same, however many were let in: files are read only when they have changed.
    """

    def __init__(self, run: SwarmConfig, folder: Path, organizer: str) -> None:
        """:param organizer: the coordinator's peer id"""
        self._run, self._folder, self._organizer = run, folder, organizer
        self._orders = Followed(folder / ORDERS_FILE, OrderBook(folder).read)
        self._book = Followed(folder / BOOK_FILE, partial(read_book, folder))
        self._admissions = Followed(folder / ADMITTED_FILE, partial(read_admissions, folder))
        self._began = time.time()
        self._asked: dict[str, float] = {}

    def known(self, peer: str) -> Admitted | None:
        """Whether this peer was let in before and still may take part; raises Denied if it may no more."""
        for kicked in self._orders.current().kicked:
            if kicked.peer == peer:
                raise Denied("kicked", kicked.why)
        admitted = self._admissions.current().peers.get(peer)
        if admitted is None:
            return None
        self._check(admitted)
        self._asked[peer] = time.time()
        return admitted

    def invited(self, secret: str) -> Admitted:
        """Whom this code was given to; raises Denied."""
        code = opened(secret, self._run, self._organizer, self._folder)
        admitted = Admitted(name=code.name, minted=code.minted, until=code.expires, machines=code.machines)
        self._check(admitted)
        return admitted

    def member(self, account: str, organizations: frozenset[str]) -> Admitted:
        """Whether this account on the Hub, with its organizations, may join; raises Denied."""
        account, access = account.lower(), self._run.access
        shared = {name.lower() for name in access.organizations} & {name.lower() for name in organizations}
        if not shared and account not in {name.lower() for name in access.accounts}:
            raise Denied("not listed")
        if account in self._book.current().revoked:
            raise Denied("revoked")
        now = time.time()
        return Admitted(name=account, minted=now, until=now + HUB_SECONDS)

    def admit(self, peer: str, admitted: Admitted) -> None:
        """Remember that this peer was let in; raises Denied if the person has as many machines here as may be.

        One whose last token has expired makes room: it may show its code again.
        """
        now, before = time.time(), self._admissions.current()
        peers = {p: a for p, a in before.peers.items() if a.until > now and p != peer}
        revoked = self._book.current().revoked.get(admitted.name, -1.0)
        others = [p for p, a in peers.items() if a.name == admitted.name and a.minted > revoked]
        if len(others) >= admitted.machines:
            idle = min(others, key=self._last_asked)
            if self._last_asked(idle) > now - PASS_SECONDS:
                if before.crowded.get(admitted.name, 0.0) < now - PASS_SECONDS:
                    write_admissions(self._folder, before.model_copy(update={"crowded": {admitted.name: now}}))
                raise Denied("too many machines")
            del peers[idle]
        peers[peer], self._asked[peer] = admitted, now
        self._asked = {p: asked for p, asked in self._asked.items() if p in peers}
        write_admissions(self._folder, before.model_copy(update={"peers": peers}))

    def crowded(self) -> frozenset[str]:
        """Those who wanted to bring more machines lately than their invitations are for."""
        since = time.time() - PASS_SECONDS
        return frozenset(name for name, at in self._admissions.current().crowded.items() if at > since)

    def refused(self) -> tuple[str, ...]:
        """Peers that may not take part any more, the newest cases first.

        In a run that is not open only those that may still have a valid token: nobody else needs to be told of.
        """
        cases = [(kicked.time, kicked.peer) for kicked in self._orders.current().kicked]
        if self._run.access.who != "open":
            revoked = self._book.current().revoked
            for peer, admitted in self._admissions.current().peers.items():
                if revoked.get(admitted.name, -1.0) >= admitted.minted:
                    cases.append((revoked[admitted.name], peer))
            cases = [(since, peer) for since, peer in cases if since > time.time() - PASS_SECONDS]
        return tuple(dict.fromkeys(peer for _, peer in sorted(cases, reverse=True)))

    def _last_asked(self, peer: str) -> float:
        return self._asked.get(peer, self._began)

    def _check(self, admitted: Admitted) -> None:
        """Raises Denied unless it still holds."""
        if self._book.current().revoked.get(admitted.name, -1.0) >= admitted.minted:
            raise Denied("revoked")
        if admitted.until <= time.time():
            raise Denied("expired")


def check_secret(secret: str, run: SwarmConfig, organizer: str) -> None:
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


def _invitation(folder: Path) -> Invitation:
    try:
        return Invitation.parse((folder / INVITATION_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise UserError(
            f"{folder} is not the folder of a run that was launched here; launch it first, its folder is runs/RUN-ID"
        ) from None
