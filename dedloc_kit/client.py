"""Reads what a coordinator publishes, over HTTP or on the Hub: the invitation and the state of the run."""

import json
import re
from pathlib import Path
from typing import Annotated, TypeVar

import requests
from pydantic import BaseModel, ConfigDict, Field
from urllib3.exceptions import HTTPError

from dedloc_kit.config.parts import MAX_STAGES
from dedloc_kit.config.section import HUB_REPOSITORY, PLAIN_TEXT
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, invitation_text
from dedloc_kit.known_peers import own_id
from dedloc_kit.machine.answers import PLAIN, Unfit, body
from dedloc_kit.machine.hidden_characters import check_pasted
from dedloc_kit.machine.home import check_organizer
from dedloc_kit.machine.paths import exists, expanded, is_folder
from dedloc_kit.machine.private import write_private
from dedloc_kit.machine.proxies import proxy_for, proxy_obstacle
from dedloc_kit.machine.text_files import read_text
from dedloc_kit.records.contributors import Standing
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation, Refusal
from dedloc_kit.records.orders import Announcement, Checks
from dedloc_kit.records.record import PEER_ID, Count, PeerId, PeerText, Reason, Record, RunId, Time
from dedloc_kit.records.steps import Absence
from dedloc_kit.serving.config import swarm_of

TIMEOUT = 10.0
MAX_BYTES = 4 * 2**20
"""Of an answer; those of a large run take some hundred kilobytes."""
LEDGER_TIMEOUT = 60.0
"""The coordinator makes the file first."""
VIEWS = ("people", "swarm", "pipeline", "experts", "organizer")
"""Of the live page: what its addresses end in."""
_KINDS = "the coordinator's URL (http://...), a file, or OWNER/NAME of the Hub"
_KEPT = "last-invitation.json"
_PEER_ID_BEGINS = ("Qm", "12D3Koo")


class NoAnswer(UserError):
    """The coordinator is down, still starting, or cannot be reached."""


class NotThere(UserError):
    """What answers there has no such thing to tell."""


class Refused(UserError):
    """The coordinator does not let this volunteer join now."""


def fetch_invitation(where: str, peer: str = "", watch: bool = False) -> Invitation:
    """The invitation at a coordinator's URL, in a file, or in a repository `OWNER/NAME` of the Hub, in this order.

    Its run configuration is checked against the run id, its organizer against the one that this machine knows, and
    against the peer id behind the URL, `http://HOST:PORT#ORGANIZER`, if there is one: what else a browser puts there is
    no key.

    Raises NoAnswer if the coordinator or the Hub does not answer, Refused if the coordinator does not let this
    volunteer join now, and UserError if it is not what it says.

    :param peer: the volunteer's id, if it has one: a full run lets those in who were there a moment ago
    :param watch: for somebody who only looks on, whom no coordinator refuses
    """
    if isinstance(where, str) and where.strip() and not exists(expanded(where)):
        check_pasted("the address of the invitation", where)
    if _is_url(where):
        invitation = Invitation.parse(_get(where, "invitation", **_who(peer, watch)))
        organizer = where.partition("#")[2]
        if organizer.startswith(_PEER_ID_BEGINS) and not re.fullmatch(PEER_ID, organizer):
            raise UserError(f"the organizer's key behind the # of {where} is cut or changed; copy the whole line again")
        if organizer.startswith(_PEER_ID_BEGINS) and organizer != invitation.organizer:
            raise UserError(
                f"somebody else than the organizer of your invitation answers at {_base(where)}; the run may have "
                "moved, or somebody stands between: ask the organizer for a new invitation"
            )
        return _checked(invitation)
    invitation = _checked(_read(where))
    return _renewed(invitation, _who(peer, watch)) if _is_repository(where) else invitation


def _checked(invitation: Invitation) -> Invitation:
    check_organizer(swarm_of(invitation).run_id, invitation.organizer)
    return invitation


def _read(where: str) -> Invitation:
    """The invitation in a file, in a run's folder or in a repository, as it was written there."""
    if _is_repository(where):
        try:
            return Invitation.parse(invitation_text(where))
        except HubUnavailable as error:
            raise NoAnswer(f"{where} cannot be read ({error}); check the connection and try again") from None
    try:
        path = expanded(where)
        text = read_text(path / INVITATION_FILE if is_folder(path) else path)
    except (OSError, ValueError) as error:  # bytes or a path that cannot be
        raise UserError(f"there is no invitation at {where!r:.300} ({error}); give {_KINDS}") from None
    return Invitation.parse(text)


def _who(peer: str, watch: bool) -> dict[str, str]:
    return {"watch": "true"} if watch else {"peer": peer}


def _renewed(kept: Invitation, who: dict[str, str]) -> Invitation:
    """As the coordinator that it names says now; unchanged if that one does not answer or leads another run, or if its
    answer, which may have come over plain HTTP, is not signed by the same organizer."""
    try:
        if kept.url is not None and _is_url(kept.url):
            newer = _checked(Invitation.parse(_get(kept.url, "invitation", **who)))
            return newer if newer.run_id == kept.run_id else kept
    except Refused:
        raise
    except UserError:  # the peers may still be where they were
        pass
    return kept


def keep_invitation(folder: Path, where: str, invitation: Invitation) -> None:
    """Keep what was fetched in a volunteer's folder, for the day when the coordinator does not answer.

    Raises UserError if the folder cannot be written.
    """
    try:
        kept = {"from": where, "invitation": invitation.model_dump(mode="json")}
        write_private(folder / _KEPT, json.dumps(kept))
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another with --folder") from None


def kept_invitation(folder: Path, where: str) -> Invitation | None:
    """What was last fetched from there into this folder, if it still is a valid invitation."""
    try:
        kept = json.loads((folder / _KEPT).read_text(encoding="utf-8"))
        if kept["from"] != where:
            return None
        invitation = _checked(Invitation.parse(json.dumps(kept["invitation"])))
    except (OSError, ValueError, LookupError, TypeError, UserError):
        return None
    return invitation


def find_invitation(where: str, folder: Path, watch: bool = False) -> tuple[Invitation, bool]:
    """The invitation from there, and whether it is new: while its coordinator is down, it is the one that was fetched
    into this folder the last time.

    Raises NoAnswer if there is none, and what `fetch_invitation` raises.
    """
    try:
        invitation = fetch_invitation(where, own_id(folder), watch)
    except NoAnswer:
        kept = kept_invitation(folder, where)
        if kept is None:
            raise
        return kept, False
    keep_invitation(folder, where, invitation)
    return invitation, True


class Shown(BaseModel):
    """Of what a page tells that which is used here; it tells more."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


ProblemText = Annotated[str, Field(max_length=300, pattern=PLAIN_TEXT)]


class Decaying(Shown):
    step: Count
    steps: Count


class RunState(Shown):
    run_id: RunId
    status: PeerText
    step: Count
    total_steps: Count
    samples_total: Count
    loss: float | None
    decay: Decaying | None = None
    announcement: Announcement | None = None
    problem: ProblemText | None = None
    checks: ProblemText | None = None
    audits: Checks | None = None
    stages: Count | None = None
    """Of a model that is cut into some."""
    experts: Count | None = None
    """Of a model that has some."""
    experts_held: ProblemText | None = None


class ShownStage(Shown):
    number: Count
    holders: Count
    throughput: float
    queue: Count
    step: Count


class Pipeline(Shown):
    bottleneck: ProblemText | None
    stages: Annotated[tuple[ShownStage, ...], Field(max_length=MAX_STAGES)]


class Person(Shown):
    name: PeerText
    samples: Count
    steps: Count


class People(Shown):
    people: tuple[Person, ...]
    total: Count


class AbsentPeer(Shown):
    peer: PeerId
    name: PeerText | None
    why: Absence


class LeftOut(Shown):
    step: Count
    count: Count
    some: tuple[AbsentPeer, ...]


class SentAway(Shown):
    peer: PeerId
    name: PeerText
    time: Time
    why: Reason
    lifted: Time | None
    last_passed: Count | None = None


class Rounds(Shown):
    left_out: tuple[LeftOut, ...] = ()
    sent_away: tuple[SentAway, ...] = ()
    sent_away_count: Count = 0


class ShownServer(Shown):
    peer: PeerId
    name: PeerText
    begin: Count
    end: Count
    state: PeerText
    decoding: float
    sessions: Count


class ShownStretch(Shown):
    begin: Count
    end: Count
    servers: Count


class ServingState(Shown):
    run_id: RunId
    model: Annotated[str, Field(max_length=200, pattern=PLAIN_TEXT)]
    status: PeerText
    layers: Count
    stretches: tuple[ShownStretch, ...]
    speed: float
    sessions: Count
    free_tokens: Count
    cache_tokens: Count
    served: Count
    servers: tuple[ShownServer, ...]
    server_count: Count


Answer = TypeVar("Answer", bound=Shown)


def fetch_state(where: str) -> RunState:
    """The state of the run as the dashboard shows it; raises NotThere if there is none, UserError if it cannot be
    had."""
    return _fetch(where, "state", RunState)


def fetch_serving(where: str) -> ServingState:
    """How a model is served, as its page shows it; raises as `fetch_state`."""
    return _fetch(where, "serving", ServingState)


def fetch_pipeline(where: str) -> Pipeline:
    """The stages of the run's model; raises NotThere if it is whole, UserError if they cannot be had."""
    return _fetch(where, "pipeline", Pipeline)


def fetch_people(where: str) -> People:
    """Who gave most to the run, most samples first, and how many they all are; raises UserError if it cannot be had."""
    return _fetch(where, "people", People)


def fetch_rounds(where: str, after: int) -> Rounds:
    """The newest global steps that were taken without some who were to come, and who was found to cheat, newest first.

    :param after: a step; what the dashboard tells of others after it is not read here
    Raises UserError if it cannot be had.
    """
    return _fetch(where, "rounds", Rounds, after=str(after))


def _fetch(where: str, what: str, kind: type[Answer], **query: str) -> Answer:
    url = where if _is_url(where) else _read(where).url
    if url is None:
        raise UserError(f"the invitation {where} names no coordinator's address; give its URL, http://HOST:PORT")
    try:
        return kind.model_validate_json(_get(url, what, **query))
    except ValueError:
        raise _no_coordinator(url) from None


class Measured(Record):
    """An evaluation as a coordinator tells it."""

    step: Count
    time: Time
    evaluation: Evaluation


def fetch_measured(url: str, after: int) -> list[Measured]:
    """The evaluations after a global step, oldest first, as the coordinator at this URL has them, without pictures.

    Raises UserError if they cannot be had.
    """
    try:
        points = json.loads(_get(url, "history", after=str(max(0, after))))["evaluations"]
        if not points:
            return []
        moments = json.loads(_get(url, "samples"))["moments"]
        samples = {moment["step"]: moment["samples"] for moment in moments}
        found = []
        for point in points:
            told = {"loss": point["loss"], "metrics": point["metrics"], "samples": samples.get(point["step"], [])}
            values = {"step": point["step"], "time": point["time"], "evaluation": told}
            found.append(Measured.model_validate_json(json.dumps(values)))
        return found
    except (ValueError, LookupError, TypeError):
        raise _no_coordinator(url) from None


def fetch_ledger(url: str, path: Path, most_bytes: int) -> None:
    """Write the whole ledger of the coordinator at this URL to a file, which nobody has looked into yet.

    Raises UserError if it cannot be had, or has more bytes.
    """
    try:
        address = f"{url.rstrip('/')}/api/export/ledger.zip"
        with requests.get(address, timeout=LEDGER_TIMEOUT, headers=PLAIN, stream=True) as answer:
            if answer.status_code != 200:
                raise NoAnswer(f"{url} has no ledger to give ({answer.status_code})")
            with path.open("wb") as file:
                for part in answer.raw.stream(1 << 20, decode_content=False):  # an archive is packed already
                    file.write(part)
                    if file.tell() > most_bytes:
                        raise UserError(f"the ledger of {url} is too large")
    except (requests.RequestException, HTTPError, OSError) as error:
        raise NoAnswer(f"the ledger of {url} cannot be had ({type(error).__name__})") from None


def fetch_standing(url: str, peer: str, after: int) -> Standing:
    """Where a peer stands, as the coordinator at this URL says, with the losses after a global step.

    Raises UserError if that cannot be had.
    """
    try:
        return Standing.parse(json.loads(_get(url, "standing", peer=peer, after=str(after))))
    except ValueError:
        raise _no_coordinator(url) from None


def _is_url(where: str) -> bool:
    """Raises UserError for what can be no invitation at all, as from a variable that is not set."""
    if not isinstance(where, str) or not where.strip():
        raise UserError(f"the invitation is {'empty' if isinstance(where, str) else repr(where)[:80]}; give {_KINDS}")
    return where.startswith(("http://", "https://"))


def repository_of(where: str) -> str | None:
    """The run's repository on the Hub, if that is where its invitation comes from."""
    return where if _is_repository(where) else None


def _is_repository(where: str) -> bool:
    return re.fullmatch(HUB_REPOSITORY, where) is not None and not exists(Path(where))


def _get(url: str, what: str, **query: str) -> str:
    address = f"{_base(url)}/api/{what}"
    try:
        with requests.get(address, params=query, timeout=TIMEOUT, headers=PLAIN, stream=True) as answer:
            text = body(answer, MAX_BYTES).decode(errors="replace")
    except requests.exceptions.SSLError:
        raise UserError(
            f"{url} shows no certificate that this machine trusts, so somebody may stand between; ask the organizer "
            "(one that the organizer has made is trusted with REQUESTS_CA_BUNDLE=FILE in the environment)"
        ) from None
    except Unfit:
        raise _no_coordinator(url) from None
    except (requests.RequestException, ValueError):  # a proxy's address may be one that no library can read
        if obstacle := proxy_obstacle(address):
            raise NoAnswer(obstacle) from None
        raise NoAnswer(
            f"no coordinator answers at {url}{_through(address)}; is it running, and can this machine reach it? "
            "Ask the organizer"
        ) from None
    if answer.status_code != 200:
        _explain(text, url)
    if answer.status_code >= 500:  # a proxy in front of it
        raise NoAnswer(
            f"no coordinator answers behind {url}{_through(address)} ({answer.status_code}); is it running? Ask the "
            "organizer"
        )
    if answer.status_code != 200:
        kind = NotThere if answer.status_code == 404 else UserError
        raise kind(f"{address} answered {answer.status_code}; is this the address of a coordinator?{_shorter(url)}")
    return text


def _no_coordinator(url: str) -> UserError:
    return UserError(f"{url} did not answer like a coordinator; check the address{_shorter(url)}")


def _base(url: str) -> str:
    """A coordinator's address, without what a browser or whoever passed it on put behind."""
    return re.split(r"[#?]", url, maxsplit=1)[0].rstrip("/")


def _shorter(url: str) -> str:
    """A hint for the address of a view of the page, which a browser shows; empty if it is none."""
    page = re.fullmatch(rf"(.*)/({'|'.join(VIEWS)})(/.*)?", _base(url))
    return f" Try {page[1]}" if page else ""


def _through(address: str) -> str:
    proxy = proxy_for(address)
    return f" through {proxy}" if proxy else ""


def _explain(answer: str, url: str) -> None:
    """Raise what a coordinator's refusal means for a volunteer; an answer that is none has other causes."""
    try:
        reason = Refusal.parse(json.loads(answer)).reason
    except ValueError:
        return
    match reason:
        case "starting":
            raise NoAnswer(f"the coordinator at {url} is still starting; try again in a moment")
        case "over":
            raise Refused(f"this run is over, thank you for coming; what it has reached is told at {url}")
        case "full":
            raise Refused(f"this run has as many volunteers as it has room for; try again later, or watch it at {url}")
