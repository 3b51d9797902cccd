"""What a peer remembers of its swarm, and where a newcomer tries to join."""

from pathlib import Path

import pytest

from dedloc_kit.known_peers import (
    MAX_PEERS,
    DataRead,
    Memory,
    ReadUpTo,
    SwarmMemory,
    Taken,
    data_read,
    initial_peers,
    of_first_peers,
    own_id,
    recall,
    take_over,
)
from dedloc_kit.records.invitation import Invitation
from tests.invitations import NOBODY, invited
from tests.tiny import tiny_run

RUN = "tiny-0123456789abcdef"


def address(peer: str, host: str = "192.0.2.1") -> str:
    return f"/ip4/{host}/tcp/31337/p2p/{peer}"


def test_what_was_seen_is_remembered_by_the_next_session_newest_first(tmp_path: Path) -> None:
    memory = Memory(tmp_path, RUN, "QmMe", port=31337)
    memory.update({"A": [address("A")], "B": [address("B"), address("B", "10.0.0.1")]})
    memory.update({"C": [address("C")]})
    assert recall(tmp_path, RUN).port == 31337
    assert recall(tmp_path, RUN).peers[0] == address("C")
    later = Memory(tmp_path, RUN, "QmMe", port=0)
    later.update({"A": [address("A")]})
    assert recall(tmp_path, RUN).port == 31337, "it may be reachable again in the session after this"
    assert recall(tmp_path, RUN).peers == (
        address("A"),
        address("C"),
        address("B", "10.0.0.1"),
        address("B"),
    )


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    memory = Memory(tmp_path, RUN, "QmMe", port=1)
    memory.update({"A": [address("A")], "B": [address("B")]})
    (tmp_path / "swarm.json").unlink()
    memory.update({"B": [address("B")], "A": [address("A")]})
    assert not (tmp_path / "swarm.json").exists()


def test_an_address_that_names_another_peer_is_not_remembered(tmp_path: Path) -> None:
    Memory(tmp_path, RUN, "QmMe", port=1).update({"A": [address("B"), address("A")]})
    assert recall(tmp_path, RUN).peers == (address("A"),)


def test_the_memory_has_a_limit(tmp_path: Path) -> None:
    memory = Memory(tmp_path, RUN, "QmMe", port=1)
    for first in (0, 50, 100):
        memory.update({str(n): [address(str(n))] for n in range(first, first + 50)})
    peers = recall(tmp_path, RUN).peers
    assert len(peers) == 64
    assert set(peers[:50]) == {address(str(n)) for n in range(100, 150)}


def test_the_memory_of_another_run_is_not_used(tmp_path: Path) -> None:
    Memory(tmp_path, RUN, "QmMe", port=7).update({"A": [address("A")]})
    assert recall(tmp_path, "other-0123456789abcdef") == SwarmMemory()


def test_a_folder_knows_the_id_of_its_peer_whatever_the_run(tmp_path: Path) -> None:
    assert own_id(tmp_path) == ""
    Memory(tmp_path, RUN, "QmMe", port=7).update({})
    assert own_id(tmp_path) == "QmMe"


def test_a_coordinator_that_begins_elsewhere_knows_whom_the_last_invitation_names(tmp_path: Path) -> None:
    run = tiny_run()
    state = tmp_path / "old" / "checkpoints" / "step-1.safetensors"
    state.parent.mkdir(parents=True)
    for folder in ("one", "two", "three", "four"):
        (tmp_path / folder).mkdir()
    take_over(tmp_path / "one", run.run_id, state)
    assert recall(tmp_path / "one", run.run_id).peers == ()
    invitation = tmp_path / "old" / "invitation.json"
    invitation.write_text(invited(run, (NOBODY, address("V"))).model_dump_json())
    for folder, place in (("one", state), ("two", state.parent), ("three", tmp_path / "old")):
        take_over(tmp_path / folder, run.run_id, place)
        assert recall(tmp_path / folder, run.run_id).peers == (NOBODY, address("V"))
    invitation.write_text(invited(run).model_dump_json())
    take_over(tmp_path / "one", run.run_id, state)
    assert recall(tmp_path / "one", run.run_id).peers == (NOBODY, address("V")), "it knows better"
    for text in ("{", invited(run).model_dump_json().replace("/p2p/", "/x/"), "\x00"):
        invitation.write_text(text)
        take_over(tmp_path / "four", run.run_id, state)
    take_over(tmp_path / "four", "other-0123456789abcdef", state)
    assert not (tmp_path / "four" / "swarm.json").exists()
    # The invitation is public: where volunteers are only the earlier coordinator's folder tells.
    Memory(tmp_path / "old", run.run_id, "C", port=7).update({"V": [address("V")]})
    invitation.write_text(invited(run, (NOBODY,)).model_dump_json())
    take_over(tmp_path / "four", run.run_id, state)
    assert recall(tmp_path / "four", run.run_id).peers == (address("V"), NOBODY)
    assert recall(tmp_path / "four", run.run_id).port == 0, "it may be taken here"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x"}', '{"peers": ["nonsense"]}', '{"port": 99999}', "\x00"])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / "swarm.json").write_text(text)
    assert recall(tmp_path, RUN) == SwarmMemory()


def test_a_newcomer_tries_the_coordinator_then_whom_it_remembers_then_the_invited_ones(tmp_path: Path) -> None:
    run = tiny_run()
    Memory(tmp_path, run.run_id, "QmMe", port=1).update({"A": [address("A")], "V": [address("V")]})
    invitation = Invitation.of(run, (address("C"), address("C", "10.0.0.1"), address("V"), address("W")))
    assert initial_peers(invitation, tmp_path) == (
        address("C"),
        address("A"),
        address("V"),
        address("C", "10.0.0.1"),
        address("W"),
    )


def test_the_number_of_peers_to_try_is_limited_and_not_that_of_their_addresses(tmp_path: Path) -> None:
    run = tiny_run()
    Memory(tmp_path, run.run_id, "QmMe", port=1).update({f"A{n}": [address(f"A{n}")] for n in range(30)})
    chosen = initial_peers(Invitation.of(run, (address("C"), address("C", "10.0.0.1"))), tmp_path)
    assert len(chosen) == MAX_PEERS + 1
    assert chosen[0] == address("C")
    assert chosen[-1] == address("C", "10.0.0.1")
    assert of_first_peers([], 3) == ()


def test_who_brought_the_last_step_is_remembered_and_stays_so_where_nothing_new_is_known(tmp_path: Path) -> None:
    taken = Taken(step=7, time=9.0, samples={"QmA": 5, "QmMe": 3})
    Memory(tmp_path, RUN, "QmMe", port=1).update({"A": [address("A")]}, taken)
    assert recall(tmp_path, RUN).taken == taken
    Memory(tmp_path, RUN, "QmMe", port=1).update({})
    assert recall(tmp_path, RUN).taken == taken
    assert recall(tmp_path, "other-0123456789abcdef").taken == Taken()


def test_where_the_data_was_read_to_is_remembered_for_this_run_and_peer_alone(tmp_path: Path) -> None:
    read = DataRead(train=ReadUpTo(block=7, sample=40), decay=ReadUpTo(block=2**32, sample=3))
    Memory(tmp_path, RUN, "QmMe", port=1).update({}, read=read)
    assert data_read(tmp_path, RUN, "QmMe") == read
    assert data_read(tmp_path, RUN, "QmOther") == data_read(tmp_path, "other", "QmMe") == DataRead()
    Memory(tmp_path, RUN, "QmMe", port=1).update({"A": [address("A")]})
    assert data_read(tmp_path, RUN, "QmMe") == read, "also by a session that reads nothing"
    Memory(tmp_path, RUN, "QmOther", port=1).update({})
    assert data_read(tmp_path, RUN, "QmMe") == DataRead()
    (tmp_path / "swarm.json").write_text('{"run_id": "' + RUN + '", "read": {"usual": {"block": -1}}}')
    assert data_read(tmp_path, RUN, "") == DataRead()


def test_another_sample_of_the_same_block_alone_is_written_only_at_once(tmp_path: Path) -> None:
    memory = Memory(tmp_path, RUN, "QmMe", port=1)

    def after(block: int, sample: int, at_once: bool = False) -> ReadUpTo | None:
        memory.update({}, read=DataRead(train=ReadUpTo(block=block, sample=sample)), at_once=at_once)
        return data_read(tmp_path, RUN, "QmMe").train

    assert after(0, 8) == ReadUpTo(block=0, sample=8)
    assert after(0, 16) == ReadUpTo(block=0, sample=8)
    assert after(1, 0) == ReadUpTo(block=1, sample=0)
    assert after(1, 8, at_once=True) == ReadUpTo(block=1, sample=8)
