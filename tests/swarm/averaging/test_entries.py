"""What a member brings to a step: a contribution to this step that is believable, and gradients under its name."""

import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.party import HEAD, HashSigner
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.entries import EntryReader, new_entry, piece_of
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Entry, Voter
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.trust.pledge import Pledged
from dedloc_kit.swarm.trust.weight import claimed
from tests.identities import an_identity
from tests.tiny import tiny_run

STEP = 2


def contribution(run_id: str, /, kind: type[Contribution] = Contribution, **values: Any) -> Contribution:
    usual: dict[str, Any] = {"step": STEP, "session": "ab", "samples": 3, "session_samples": 5, "loss": 1.0, "name": ""}
    if kind is Pledged:
        usual |= {"group": "ab", "microbatches": 1, **dict.fromkeys(("parts", "before", "after", "work"), bytes(32))}
    return kind.parse({"run_id": run_id, "time": time.time(), **usual, **values})


def entry_of(brought: Contribution, peer: str = "peer1") -> Entry:
    voter = Voter(peer, 1)
    where = Instance(brought.run_id, "", STEP, HEAD, (0, ""), "organizer", "peer0", Electorate({voter: 1}, None))
    return new_entry(where, voter, brought).signed(HashSigner(peer))


def reader_of(folder: Path, checks: str = "off") -> EntryReader:
    run = tiny_run(global_batch=10, trust={"checks": checks})
    return EntryReader(run, "organizer", Signer(an_identity(folder / "key")), claimed)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"samples": 640, "session_samples": 640}, None),
        ({"samples": 0}, None),
        ({"samples": 641, "session_samples": 641}, "claims 641 samples"),
        ({"step": 3}, "to another step"),
        ({"run_id": "another-0123456789abcdef"}, "run"),
    ],
)
def test_what_a_member_brings_must_be_for_this_step_and_believable(
    tmp_path: Path, values: dict[str, Any], why: str | None
) -> None:
    reader = reader_of(tmp_path)
    brought = contribution(reader.run.run_id, **values)
    if why is None:
        assert reader.read(entry_of(brought), STEP) == brought
    else:
        with pytest.raises(ValueError, match=why):
            reader.read(entry_of(brought), STEP)


def test_gradients_have_the_name_and_the_samples_of_their_contribution(tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    entry = entry_of(contribution(reader.run.run_id))
    piece = entry.pieces[0]
    assert piece.hash == piece_of(entry.about)
    for lie in (
        {"pieces": ()},
        {"pieces": (piece.model_copy(update={"samples": 4}),)},
        {"pieces": (piece.model_copy(update={"hash": "7" * 64}),)},
        {"pieces": (piece, piece.model_copy(update={"hash": "7" * 64}))},
    ):
        with pytest.raises(ValueError, match="other gradients than it describes"):
            reader.read(entry.changed(**lie), STEP)


@pytest.mark.parametrize("about", ["", "nonsense", "[" * 4000, '{"samples": 3}'])
def test_a_contribution_that_cannot_be_read_is_none(tmp_path: Path, about: str) -> None:
    reader = reader_of(tmp_path)
    entry = entry_of(contribution(reader.run.run_id))
    with pytest.raises(ValueError, match="cannot be read"):
        reader.read(entry.changed(about=about), STEP)
    with pytest.raises(ValueError, match="canonical"):
        reader.read(entry.changed(about=entry.about + " "), STEP)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, None),
        ({"samples": 0, "microbatches": 0}, None),
        ({"microbatches": 0}, "samples without work"),
        ({"samples": 0}, "samples without work"),
    ],
)
def test_where_members_are_checked_each_brings_a_pledge_with_work(
    tmp_path: Path, values: dict[str, Any], why: str | None
) -> None:
    reader = reader_of(tmp_path, checks="on")
    brought = contribution(reader.run.run_id, Pledged, **values)
    if why is None:
        assert reader.read(entry_of(brought), STEP) == brought
    else:
        with pytest.raises(ValueError, match=why):
            reader.read(entry_of(brought), STEP)
    with pytest.raises(ValueError, match="cannot be read"):
        reader.read(entry_of(contribution(reader.run.run_id)), STEP)
