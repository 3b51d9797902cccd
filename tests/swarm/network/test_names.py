"""What a run's keys and protocols are called: peers of other versions must find each other, and parts must not."""

from dedloc_kit.swarm.network.kinds import CONTRIBUTIONS, NOTICE, PROGRESS
from dedloc_kit.swarm.network.names import Names

WHOLE, STAGE = Names("demo-01"), Names("demo-01", "stage 2")


def test_the_names_of_the_whole_model_are_those_that_peers_of_earlier_versions_use() -> None:
    assert WHOLE.averaging == "demo-01"
    assert WHOLE.service("sharing") == "demo-01::sharing"
    assert WHOLE.service("admission") == "demo-01::admission"
    assert WHOLE.door("node") == "demo-01::access::node"
    assert [kind.key(WHOLE) for kind in (PROGRESS, CONTRIBUTIONS, NOTICE)] == [
        "demo-01_progress",
        "demo-01_contributions",
        "demo-01_notice",
    ]
    assert PROGRESS.shares(WHOLE)[::15] == ("demo-01_progress.0", "demo-01_progress.f")
    assert NOTICE.shares(WHOLE) == ()


def test_a_part_has_names_of_its_own_but_for_what_the_organizer_says_to_all() -> None:
    def of_the_part(names: Names) -> set[str]:
        keys = (*PROGRESS.shares(names), PROGRESS.key(names), CONTRIBUTIONS.key(names))
        return {names.averaging, names.service("sharing"), *keys}

    assert not of_the_part(WHOLE) & of_the_part(STAGE)
    assert (NOTICE.key(STAGE), STAGE.door("node")) == (NOTICE.key(WHOLE), WHOLE.door("node"))
