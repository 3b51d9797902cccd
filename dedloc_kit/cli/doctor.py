"""`dedloc doctor`: what on this machine, or on the way to a run, would keep it from taking part; each with its fix."""

import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from dedloc_kit.cli.findings import Finding
from dedloc_kit.client import fetch_invitation, fetch_state
from dedloc_kit.display.human import size
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Reached
from dedloc_kit.known_peers import of_first_peers, recall
from dedloc_kit.machine.account import who_am_i
from dedloc_kit.machine.dialling import own_address
from dedloc_kit.machine.hardware import check, check_clock, check_connections, clock_skew, machine_at, tpu
from dedloc_kit.machine.paths import is_folder
from dedloc_kit.machine.ports import advice
from dedloc_kit.machine.preflight import obstacles
from dedloc_kit.machine.proxies import proxy_obstacle
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.worker import Worker, reach_job

KEPT_CHECKPOINTS = 5
"""So many more must fit on an organizer's disk: those that stay, and the one that is being written."""
_PYTHON = ((3, 11), (3, 13))


def examine(where: str | None, *, port: int, swarm_port: int) -> Iterator[Finding]:
    """What there is to say, one after the other.

    :param where: an invitation, for a volunteer; the folder of a run that was launched here, for its organizer
    :param port: of the dashboard
    :param swarm_port: 0: any
    """
    folder = Path(where) if where and is_folder(Path(where)) else None
    yield from _software("organizer" if folder else "")
    yield from _surroundings(where)
    invitation: Invitation | None = None
    if where:
        try:
            invitation = fetch_invitation(str(folder / INVITATION_FILE) if folder else where)
            yield Finding(f"the run is {invitation.run_id}")
        except UserError as error:
            yield Finding.of(error)
    yield from _machine(folder, invitation)
    yield from _clock(invitation.url if invitation and folder is None else None)
    yield from _account()
    if folder is not None:
        yield from _organizer(folder, invitation, port, swarm_port)
    elif invitation is not None:
        yield from _volunteer(invitation, swarm_port)
    else:
        yield from _network()


def _software(extra: str) -> Iterator[Finding]:
    here = sys.version_info[:2]
    what = f"Python {platform.python_version()} on {platform.system()}"
    if not _PYTHON[0] <= here <= _PYTHON[1]:
        yield Finding(what, "use Python 3.11, 3.12 or 3.13", must=True)
    elif platform.system() != "Linux":
        yield Finding(what, "the kit is only tested on Linux; on Windows use WSL")
    else:
        yield Finding(what)
    wrong = sorted(_unsatisfied(extra))
    if wrong:
        yield Finding(", ".join(wrong), "install the kit again, in an environment of its own", must=True)
    else:
        yield Finding(f"dedloc_kit {metadata.version('dedloc_kit')} has the packages that it needs")


def _surroundings(where: str | None) -> Iterator[Finding]:
    from huggingface_hub.constants import ENDPOINT

    found = [Finding.of(obstacle) for obstacle in obstacles()]
    ways = [where, ENDPOINT] if where and where.startswith(("http://", "https://")) else [ENDPOINT]
    said = dict.fromkeys(obstacle for url in ways if (obstacle := proxy_obstacle(url)))
    found += [Finding.of(obstacle) for obstacle in said]
    yield from found or [Finding("home, temporary files, shared memory and proxies are as they should be")]


def _unsatisfied(extra: str) -> Iterator[str]:
    """Packages that are missing, or have a version that the kit does not work with; those of an extra too."""
    from packaging.requirements import Requirement

    for text in metadata.requires("dedloc_kit") or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{requirement.name} is missing"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} is {version} and should be {requirement.specifier}"


def _machine(folder: Path | None, invitation: Invitation | None) -> Iterator[Finding]:
    machine = machine_at(folder or Path.cwd())
    yield Finding(str(machine))
    for said in filter(None, (tpu(), _apple())):
        what, _, fix = said.partition("; ")
        yield Finding(what, fix)
    parameters = invitation.held_parameters if invitation and folder is None else None
    try:
        state = invitation.run_config().optimizer.state_dtype if invitation else "float32"
        for said in check(machine, parameters, state=state):
            what, _, fix = said.partition("; ")
            yield Finding(what, fix)
    except UserError as error:
        yield Finding.of(error)
        return
    checkpoints = folder.glob("checkpoints/*.safetensors") if folder else ()
    checkpoint = max((path.stat().st_size for path in checkpoints), default=0)
    disk = f"{size(machine.free_disk)} of the disk are free"
    if machine.free_disk < KEPT_CHECKPOINTS * checkpoint:
        yield Finding(
            f"{disk}, a checkpoint takes {size(checkpoint)}",
            "make room, or keep fewer (keep_checkpoints in coordinator.toml)",
        )
    else:
        yield Finding(disk)


def _apple() -> str:
    """What is to be said of Apple's GPU, if this machine has one."""
    if (platform.system(), platform.machine()) != ("Darwin", "arm64"):
        return ""
    return (
        "Apple's GPU trains in float32, and nobody has tried all tasks on it; where one fails, join with --devices cpu"
    )


def _clock(url: str | None) -> Iterator[Finding]:
    from huggingface_hub.constants import ENDPOINT

    of_whom = "the coordinator" if url else "the Hub"
    skew = clock_skew(url or ENDPOINT)
    if skew is None:
        yield Finding("nobody could be asked for the time", f"see that this machine reaches {url or ENDPOINT}")
        return
    try:
        said = check_clock(skew)
    except UserError as error:
        yield Finding.of(error)
        return
    what, _, fix = (said or f"the clock agrees with that of {of_whom}").partition("; ")
    yield Finding(what, fix)


def _account() -> Iterator[Finding]:
    with tempfile.TemporaryDirectory() as nowhere:
        account = who_am_i(None, Path(nowhere))
    if account.warning:
        what, _, fix = account.warning.partition("; ")
        yield Finding(what, fix)
    elif account.token is None:
        yield Finding(
            "no Hugging Face token here: none is needed, except for gated data and to publish (hf auth login)"
        )
    else:
        yield Finding(
            f"there is a Hugging Face token, of {account.name if not account.anonymous else 'an unknown user'}"
        )


def _network() -> Iterator[Finding]:
    if own_address() is None:
        yield Finding("this machine has no network", "connect it", must=True)
    else:
        yield Finding("this machine has a network; name an invitation or a run's folder to try the way there")


def _organizer(folder: Path, invitation: Invitation | None, port: int, swarm_port: int) -> Iterator[Finding]:
    url = invitation.url if invitation else None
    if invitation is not None:
        said = advice(of_first_peers(invitation.peers, 1), port)
        what, _, fix = said.partition("; ") if said.startswith("only") else (said, "", "")
        yield Finding(what, fix or ("launch it without --host 127.0.0.1" if what.startswith("only") else ""))
    try:
        state = fetch_state(url) if url else None
    except UserError:
        state = None
    if state is not None:
        yield Finding(f"the coordinator is up, at step {state.step}")
        yield Finding(f"whether others reach it only others can tell: let somebody elsewhere run  dedloc doctor {url}")
        return
    for name, flag, number in (("live page", "--port", port), ("swarm", "--swarm-port", swarm_port)):
        if number and not _is_free(number):
            yield Finding(
                f"port {number} of the {name} is in use", f"end what uses it, or choose another with {flag}", True
            )
    if swarm_port and not _is_free(swarm_port):
        return
    volunteers = recall(folder, invitation.run_id).peers if invitation else ()
    reached = _reached(invitation.run_id, volunteers, swarm_port) if invitation and volunteers else None
    if isinstance(reached, Reached) and reached.reachable is not None:
        fix = "open the port in all firewalls between, and let the router forward it to this machine"
        yield Finding(reached.text.partition(", so it")[0], "" if reached.reachable else fix, not reached.reachable)
    else:
        yield Finding("no volunteer answers who could try to reach this machine; ask again once somebody has joined")


def _volunteer(invitation: Invitation, swarm_port: int) -> Iterator[Finding]:
    page = invitation.url is not None and clock_skew(invitation.url) is not None
    try:
        check_connections(invitation.peers, page_answers=page)
    except UserError as error:
        yield Finding.of(error)
        return
    yield Finding("peers of the run answer")
    if not page:
        yield Finding("the run's page does not answer", "you can join all the same; tell the organizer")
    reached = _reached(invitation.run_id, invitation.peers, swarm_port)
    if isinstance(reached, UserError):
        yield Finding.of(reached)
    elif reached.reachable is False:
        yield Finding(reached.text, "to carry a larger share, forward a port and name it with --swarm-port")
    else:
        yield Finding(reached.text)


def _reached(run_id: str, peers: tuple[str, ...], port: int) -> Reached | UserError:
    """What some of these peers of a run say who try to connect to this machine."""
    heard: list[Reached] = []

    def hear(event: AnyEvent) -> None:
        if isinstance(event, Reached):
            heard.append(event)

    with tempfile.TemporaryDirectory(prefix="dedloc-doctor-") as folder:
        job = reach_job(run_id, peers, Path(folder), port)
        worker = Worker("reach", job, folder=Path(folder), on_event=hear)
        try:
            worker.wait()
        finally:
            worker.stop()
    return heard[0] if heard else UserError(worker.failure or "nobody could be asked; try again")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
