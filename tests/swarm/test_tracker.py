"""What a peer says of itself, and when; the DHT is a dictionary."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hivemind.utils import get_dht_time

from dedloc_kit.records import Progress
from dedloc_kit.swarm import tracker
from dedloc_kit.swarm.identity import Identity
from dedloc_kit.swarm.signing import Signer
from dedloc_kit.swarm.tracker import Tracker
from dedloc_kit.swarm.troubles import Troubles
from tests.swarm.harness import progress, wait_until
from tests.swarm.test_directory import Plain

RUN_ID = "tiny-0123456789abcdef"


def test_after_a_round_that_came_to_nothing_peers_tell_each_other_their_samples_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "HEARTBEAT", 600.0)
    dht: Any = Plain()

    def a_tracker(name: str) -> Tracker:
        signer = Signer(Identity(tmp_path / name))
        return Tracker(dht, signer, RUN_ID, 10, (), pytest.fail, Troubles(pytest.fail))

    def says(samples: int) -> Progress:
        return progress(run_id=RUN_ID, samples=samples, time=get_dht_time())

    me, other = a_tracker("me"), a_tracker("other")
    other.report(says(1), period=600.0)
    other.start()
    wait_until(lambda: bool(dht.keys), "the other one says nothing")
    me.report(says(2), period=600.0)
    me.start()
    wait_until(lambda: [p.samples for p in me.others().values()] == [1], "the other one is not seen")
    for peer, samples in ((other, 3), (me, 4)):
        peer.speak()
        peer.report(says(samples), period=600.0)
        wait_until(partial(_told, dht, samples), "it does not say it")
    wait_until(lambda: [p.samples for p in me.others().values()] == [3], "it does not look")
    for peer in (me, other):
        peer.leave()


def _told(dht: Plain, samples: int) -> bool:
    entries = [entry for records in dht.keys.values() for entry in records.values()]
    return any(Progress.parse(entry.value).samples == samples for entry in entries)
