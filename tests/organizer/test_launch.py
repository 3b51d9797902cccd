"""The invitation that a coordinator publishes; test_demo and test_collaboration start real ones."""

from pathlib import Path

from dedloc_kit.events import Joined, Peers
from dedloc_kit.memory import Memory
from dedloc_kit.organizer.launch import LISTED_VOLUNTEERS, Coordinator
from dedloc_kit.run import PeerConfig
from dedloc_kit.version import __version__
from tests.tiny import tiny_run


def address(peer: str, host: str = "192.0.2.1") -> str:
    return f"/ip4/{host}/tcp/31337/p2p/{peer}"


def test_the_invitation_lists_the_coordinator_and_some_volunteers_that_can_be_reached(tmp_path: Path) -> None:
    run = tiny_run()
    coordinator = Coordinator(run, PeerConfig(folder=tmp_path), host="127.0.0.1", port=0, on_event=lambda event: None)
    mine = (address("C"), address("C", "10.0.0.1"))
    joined = Joined(run_id=run.run_id, peer="C", session="a", addresses=mine, step=0, device="CPU", parameters=18)
    coordinator._heard(joined)
    assert coordinator.invitation().peers == mine
    assert coordinator.invitation().version == __version__
    assert coordinator.invitation().parameters == 18

    memory = Memory(tmp_path, run.run_id, "QmMe", port=31337)
    memory.update({"V": [address("V")]})
    coordinator._heard(Peers(peers=()))
    assert coordinator.invitation().peers == (*mine, address("V"))

    memory.update({f"W{n}": [address(f"W{n}")] for n in range(20)})
    coordinator._heard(Peers(peers=()))
    peers = coordinator.invitation().peers
    assert peers[:2] == mine
    assert len({peer.rpartition("/")[2] for peer in peers}) == 1 + LISTED_VOLUNTEERS
    assert coordinator.invitation().run_config() == run
