"""What the organizer orders while a run goes on, from the command line or the page: pause, kick, announce and more."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.known_peers import own_id
from dedloc_kit.learning.train.state.ruined import Ruined
from dedloc_kit.ledger import Ledger, UnreadyLedger
from dedloc_kit.machine.home import in_use
from dedloc_kit.machine.paths import exists
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.records.record import PEER_ID, Count, Record
from dedloc_kit.steering.orders import OrderBook, Rewinding

MAX_RATE = 10.0
SAVE_SECONDS = 120.0
"""How long a checkpoint that was ordered may take: those of large models do."""
_LOOK_SECONDS = 0.2
_MAX_CANDIDATES, _MAX_VISITS = 5, 10_000


def give(order: str, folder: Path, what: str) -> str:
    """Give an order to the run in this folder and say what happens now. Raises UserError if it cannot be given.

    :param what: of kick and unban a peer's id or name or how one of them begins, of announce the text
    """
    check_folder(folder)
    book = OrderBook(folder)
    match order:
        case "pause":
            book.pause()
            return f"the run pauses within seconds; volunteers wait. Go on with: dedloc run resume {folder}"
        case "resume":
            book.resume()
            return "the run goes on within seconds, if its coordinator is up"
        case "finish":
            book.finish()
            return (
                "the run ends with the global step that is under way; then the volunteers are thanked and the model is "
                f"kept. To let it go on after all: dedloc run resume {folder}"
            )
        case "kick":
            peer, name = find_peer(what, known_peers(folder))
            if peer == own_id(folder):
                raise UserError(
                    f"{_called(peer, name)} is the coordinator itself; to end the run: dedloc run finish {folder}"
                )
            book.kick(peer, name)
            return f"{_called(peer, name)} is kicked. To let it come back: dedloc run unban {folder} {peer}"
        case "unban":
            peer, name = find_peer(what, {kicked.peer: kicked.name for kicked in book.read().kicked})
            book.unban(peer, name)
            return f"{_called(peer, name)} may come back"
        case "checkpoint":  # without waiting for it, as `save_now` does
            book.checkpoint()
            return "a checkpoint is written within seconds, if there is none of this global step"
        case _:
            book.announce(what)
            return "volunteers and viewers see it within seconds" if what else "the announcement is gone within seconds"


class SavedCheckpoint(Record):
    """Of a run's training state."""

    step: Count
    """The global step whose state it is."""
    path: Path


def save_now(
    folder: Path, patience: float = SAVE_SECONDS, wait: Callable[[float], None] = time.sleep
) -> SavedCheckpoint:
    """Let the coordinator of the run in this folder save the training state, and wait until it has.

    If it has a checkpoint of the newest global step, that is the one. Raises UserError if none comes within `patience`
    seconds, which `wait` lets pass.
    """
    check_folder(folder)
    kept, newest = _kept(folder), _last_step(folder)
    if not in_use(folder):
        there = f"; its newest checkpoint is {_checkpoint(folder, kept[-1])}" if kept else ""
        raise UserError(f"the run in {folder} is not running{there or '; start it with dedloc launch'}")
    if not newest and not kept:
        raise UserError("no global step is done yet, so there is nothing to save")
    OrderBook(folder).checkpoint()
    left = patience
    while not kept or kept[-1] < newest:
        if left <= 0:
            raise UserError(
                f"no checkpoint of global step {newest} has come within {patience:.0f} seconds; the order stands, so "
                f"look into {folder / 'checkpoints'} later, and into the coordinator's terminal or log for a reason"
            )
        wait(_LOOK_SECONDS)
        left -= _LOOK_SECONDS
        kept = _kept(folder)
    return SavedCheckpoint(step=kept[-1], path=_checkpoint(folder, kept[-1]))


def rollback(folder: Path, step: str, rate: str) -> str:
    """Let the next global step of the run in this folder take over the checkpoint of an earlier step, and say what
    happens now. Raises UserError if that cannot be.

    :param step: 0 is the untrained model
    :param rate: a factor of the learning rate, on top of what held at that checkpoint
    """
    check_folder(folder)
    checkpoints, kept = folder / "checkpoints", _kept(folder)
    wanted = int(step) if step.isdecimal() and len(step) < 16 else None
    if wanted not in (0, *kept):
        which = ", ".join(map(str, kept)) or "none yet"
        raise UserError(
            f"there is no checkpoint of step '{step}' in {checkpoints}, only of these: {which}; step 0, the untrained "
            "model, can be had at any time"
        )
    if wanted in Ruined(checkpoints):
        raise UserError(f"at step {wanted} the training had diverged; take a checkpoint of before")
    factor = _factor(rate)
    if not in_use(folder):
        raise UserError(
            f"the run in {folder} is not running; start it with 'dedloc launch', which begins with its newest good "
            "checkpoint, and give the order again"
        )
    _await_rollback(folder)
    OrderBook(folder).rollback(wanted, factor, max([*kept, _last_step(folder)]))
    times = "" if factor == 1 else f", with {factor:g} times its learning rate"
    return (
        f"within seconds a new global step takes over the state of step {wanted}{times}; samples that are under way "
        "are dropped, and volunteers fetch the state"
    )


def cooldown(folder: Path, steps: str) -> str:
    """Let the learning rate of the run in this folder fall over so many global steps, after which the run is over, and
    say what happens now. Raises UserError if that cannot be."""
    check_folder(folder)
    settings = Invitation.parse((folder / INVITATION_FILE).read_text(encoding="utf-8")).run_config().optimizer
    if settings.schedule != "warmup-stable-decay":
        raise UserError(
            f"the learning rate of this run falls by itself (optimizer.schedule is '{settings.schedule}'); only one "
            f"with 'warmup-stable-decay' waits for this order. To end this run: dedloc run finish {folder}"
        )
    book, newest = OrderBook(folder), max([*_kept(folder), _last_step(folder)])
    orders = book.read()
    if orders.decay is not None:
        raise UserError(
            f"a cooldown over {orders.decay.steps} global steps was ordered after step {orders.decay.after}, and a run "
            "has one; to go on from before it: dedloc launch RUN.toml --resume CHECKPOINT --folder NEW"
        )
    _await_rollback(folder)
    left = settings.total_steps - newest
    if left < 1:
        raise UserError(
            f"the run is over: global step {newest} was its last one; order the cooldown before optimizer.total_steps"
        )
    wanted = int(steps) if steps.isdecimal() and len(steps) < 16 else 0
    if not 1 <= wanted <= left:
        raise UserError(
            f"--steps says over how many global steps the rate falls: 1 to {left}, which is how many the run has left, "
            f"not '{steps}'"
        )
    book.cooldown(wanted, newest)
    return (
        f"with the next global step the learning rate begins to fall, over {wanted} steps; then the run ends and the "
        "model is kept"
    )


def _await_rollback(folder: Path) -> None:
    """Raises UserError while a rewind is still to be done: one after the other."""
    before = pending_rollback(folder)
    if before is not None:
        raise UserError(
            f"the rollback to step {before.checkpoint} that was ordered before is not done yet; it is with the next "
            "global step, once the coordinator is up"
        )


def _factor(rate: str) -> float:
    try:
        factor = float(rate)
    except ValueError:
        factor = math.nan
    if not 0 < factor <= MAX_RATE:
        raise UserError(f"--rate is a factor of the learning rate, above 0 and at most {MAX_RATE:g}, not '{rate}'")
    return factor


def pending_rollback(folder: Path) -> Rewinding | None:
    """The rewind that was ordered and is not done yet: only a step that took over a state had no members. Raises
    UserError if the orders cannot be read."""
    order = OrderBook(folder).read().rewind
    if order is None:
        return None
    with _ledger(folder) as ledger:
        done = ledger is not None and any(not step.peers for step in ledger.steps(order.after))
    return None if done else order


def held_out_losses(folder: Path, steps: Sequence[int]) -> dict[int, float]:
    """Those of these global steps that are known, by step."""
    with _ledger(folder) as ledger:
        return {} if ledger is None else ledger.held_out_losses(steps)


def _kept(folder: Path) -> list[int]:
    """The steps of the checkpoints in the folder."""
    found = (folder / "checkpoints").glob("step-*.safetensors")
    return sorted(int(path.stem[5:]) for path in found if path.stem[5:].isdecimal())


def _checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}.safetensors"


def _last_step(folder: Path) -> int:
    with _ledger(folder) as ledger:
        return ledger.last_step() if ledger else 0


@contextmanager
def _ledger(folder: Path) -> Iterator[Ledger | None]:
    """None while there is none yet; raises UserError if it cannot be read."""
    path, ledger = folder / "ledger.sqlite", None
    with suppress(UnreadyLedger):
        ledger = Ledger(path, read_only=True) if path.exists() else None
    try:
        yield ledger
    finally:
        if ledger is not None:
            ledger.close()


def dashboard_of(folder: Path) -> str:
    """The address of the live page of the run in this folder; raises UserError if no run was launched in it."""
    check_folder(folder)
    invitation = Invitation.parse((folder / INVITATION_FILE).read_text(encoding="utf-8"))
    if invitation.url is None:
        raise UserError(f"the invitation in {folder} names no live page; launch the run again")
    return invitation.url


def check_folder(folder: Path) -> None:
    """Raises UserError if no run was launched in this folder."""
    if not exists(folder / INVITATION_FILE):
        raise UserError(f"{folder} is not the folder of a run that was launched here; it is runs/RUN-ID")


def known_peers(folder: Path) -> dict[str, str]:
    """The names of all who came to the run in this folder, by peer id. Raises UserError if they cannot be read."""
    with _ledger(folder) as ledger:
        if ledger is None:
            return {}
        came = {visit.peer: visit.name for visit in reversed(ledger.visits(_MAX_VISITS))}
        return came | {contributor.peer: contributor.name for contributor in ledger.contributors()}


def find_peer(text: str, known: Mapping[str, str]) -> tuple[str, str]:
    """The id and the name of the one known peer that is called so.

    Raises UserError if there is none or more than one; of a whole peer id, which means only one peer, never.

    :param text: an id or a name, or how it begins; the case of a name does not matter
    :param known: names by peer id
    """
    if text in known or re.fullmatch(PEER_ID, text):
        return text, known.get(text, "")
    name = text.casefold()
    found = [peer for peer in known if known[peer].casefold() == name]
    found = found or [
        peer for peer in known if text and (known[peer].casefold().startswith(name) or peer.startswith(text))
    ]
    if not found:
        raise UserError(f"there is no peer '{text}'; give its name or its id as the live page shows it")
    if len(found) > 1:
        some = ", ".join(_called(peer, known[peer]) for peer in found[:_MAX_CANDIDATES])
        raise UserError(f"'{text}' may be any of {len(found)} peers; give the id of the one: {some}")
    return found[0], known[found[0]]


def _called(peer: str, name: str) -> str:
    return f"{name} ({peer})" if name else peer
