"""Who may join a run: the organizer's personal codes and accounts on the Hub."""

import time
from pathlib import Path

from pydantic import ValidationError

from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.records import INVITATION_FILE, MOST_REFUSED, Invitation
from dedloc_kit.run import RunConfig
from dedloc_kit.steering.codes import Code, digest, opened
from dedloc_kit.steering.denials import Denied, explained
from dedloc_kit.steering.guests import (
    Admissions,
    Admitted,
    changed_book,
    read_admissions,
    read_book,
    write_admissions,
)
from dedloc_kit.steering.hub_account import whose_token
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.validation import describe

DAY = 86400.0
HUB_SECONDS = 30 * DAY
"""After this long an account must be shown again: it may have left the organization."""


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
            organizer=digest(invitation.organizer),
            name=name.lower(),
            minted=round(time.time(), 3),
            expires=round(time.time() + days * DAY, 3),
        )
    except ValidationError as error:
        raise UserError(f"nobody can be invited like this: {describe(error, Code)}") from None
    with changed_book(folder) as book:
        book["invited"] = {**book["invited"], code.name: {"minted": code.minted, "expires": code.expires}}
    return code.signed(folder)


def revoke(folder: Path, name: str) -> None:
    """Withdraw somebody's invitations; raises UserError if there are none."""
    run, name = _invitation(folder).run_config(), name.lower()
    if run.access.who == "open":
        raise UserError(f"{run.run_id} is open to all, nobody was invited; 'dedloc kick' sends a peer away")
    with changed_book(folder) as book:
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
        admitted = read_admissions(self._folder).peers.get(peer)
        return None if admitted is None else self._valid(admitted)

    def invited(self, secret: str) -> Admitted:
        """Whom this code was given to; raises Denied."""
        code = opened(secret, self._run, self._organizer, self._folder)
        return self._valid(Admitted(name=code.name, minted=code.minted, until=code.expires))

    def member(self, account: str, organizations: frozenset[str]) -> Admitted:
        """Whether this account on the Hub, with its organizations, may join; raises Denied."""
        account, access = account.lower(), self._run.access
        shared = {name.lower() for name in access.organizations} & {name.lower() for name in organizations}
        if not shared and account not in {name.lower() for name in access.accounts}:
            raise Denied("not listed")
        if account in read_book(self._folder).revoked:
            raise Denied("revoked")
        now = time.time()
        return Admitted(name=account, minted=now, until=now + HUB_SECONDS)

    def admit(self, peer: str, admitted: Admitted) -> None:
        """Remember that this peer was let in."""
        peers = {**read_admissions(self._folder).peers, peer: admitted}
        kept = {p: a for p, a in peers.items() if a.until > time.time()}
        write_admissions(self._folder, Admissions(peers=kept))

    def refused(self) -> tuple[str, ...]:
        """Peers that may not take part any more, the newest cases only if there are many.

        In a run that is not open the others have no valid token any more: there tokens last for less time than
        it takes so many cases.
        """
        cases = [(kicked.time, kicked.peer) for kicked in self._orders.read().kicked]
        if self._run.access.who != "open":
            revoked = read_book(self._folder).revoked
            for peer, admitted in read_admissions(self._folder).peers.items():
                if revoked.get(admitted.name, -1.0) >= admitted.minted:
                    cases.append((revoked[admitted.name], peer))
        return tuple(dict.fromkeys(peer for _, peer in sorted(cases, reverse=True)))[:MOST_REFUSED]

    def _valid(self, admitted: Admitted) -> Admitted:
        if read_book(self._folder).revoked.get(admitted.name, -1.0) >= admitted.minted:
            raise Denied("revoked")
        if admitted.until <= time.time():
            raise Denied("expired")
        return admitted


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


def _invitation(folder: Path) -> Invitation:
    try:
        return Invitation.parse((folder / INVITATION_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise UserError(
            f"{folder} is not the folder of a run that was launched here; launch it first, its folder is runs/RUN-ID"
        ) from None
