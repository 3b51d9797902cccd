"""What a run's keys and protocols are called: peers of other versions must find each other."""

from dedloc_kit.swarm.network.kinds import CONTRIBUTIONS, NOTICE, PROGRESS
from dedloc_kit.swarm.network.names import Names

WHOLE = Names("demo-01")


def test_the_names_of_the_whole_model_are_those_that_peers_of_earlier_versions_use() -> None:
    assert WHOLE.service("sharing") == "demo-01::sharing"
    assert WHOLE.service("admission") == "demo-01::admission"
    assert WHOLE.door("node") == "demo-01::access::node"
    assert [kind.key(WHOLE) for kind in (PROGRESS, CONTRIBUTIONS, NOTICE)] == [
        "demo-01_progress",
        "demo-01_contribution",
        "demo-01_notice",
    ]
    assert PROGRESS.shares(WHOLE)[::15] == ("demo-01_progress.0", "demo-01_progress.f")
    assert NOTICE.shares(WHOLE) == ()
