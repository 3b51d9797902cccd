import pytest

from dedloc_kit.events import ServerSeen
from dedloc_kit.serving.coverage import coverage, named, served_by, speed
from tests.dashboard.served_model import GAP, LAYERS, SERVING, server


def of(*servers: ServerSeen) -> list[tuple[int, int, int, float]]:
    return [(each.begin, each.end, each.servers, each.speed) for each in coverage(6, servers, SERVING.manifest)]


def test_what_a_layer_passes_is_the_sum_of_its_servers_and_the_swarm_passes_the_least() -> None:
    stretches = coverage(6, (server(0, 0, 4), server(1, 2, 6, decoding=3.0)), SERVING.manifest)
    assert of(server(0, 0, 4), server(1, 2, 6, decoding=3.0)) == [(0, 2, 1, 10.0), (2, 4, 2, 13.0), (4, 6, 1, 3.0)]
    assert speed(stretches) == 3.0
    assert speed(coverage(6, (server(0, 0, 4),), SERVING.manifest)) == 0.0
    assert speed(()) == 0.0


def test_without_servers_all_layers_are_bare() -> None:
    assert of() == [(0, 6, 0, 0.0)]
    assert coverage(0, (), SERVING.manifest) == ()


@pytest.mark.parametrize("values", [{"state": "joining"}, {"state": "leaving"}, {"version": "cd" * 32}])
def test_who_does_not_answer_with_this_version_does_not_count(values: dict[str, str]) -> None:
    assert of(server(0, 0, 6, **values)) == of()


def test_who_answers_with_an_older_version_as_well_counts_for_both() -> None:
    both = server(0, 0, 6, version="cd" * 32, older=SERVING.manifest)
    assert of(both) == [(0, 6, 1, 10.0)]
    assert coverage(6, (both,), "cd" * 32) == coverage(6, (both,), SERVING.manifest)
    assert coverage(6, (both, server(1)), "")[0].servers == 0, "no version is none that anybody serves"


def test_a_server_that_claims_more_layers_than_there_are_serves_those_that_there_are() -> None:
    assert of(server(0, 0, 1024)) == [(0, 6, 1, 10.0)]
    assert of(server(0, 100, 1024)) == of()


def test_layers_that_few_serve_are_named_as_people_read_them() -> None:
    stretches = coverage(LAYERS, GAP.servers, SERVING.manifest)
    assert served_by(0, stretches) == ("22 to 25",)
    assert served_by(1, stretches) == ("20 to 21", "26 to 29")
    assert served_by(1, coverage(3, (server(0, 0, 1), server(1, 1, 2)), SERVING.manifest)) == ("0 to 1",)
    assert served_by(0, coverage(3, (server(0, 0, 2),), SERVING.manifest)) == ("2",)


@pytest.mark.parametrize(
    ("layers", "words"), [(("1",), "layer 1"), (("1 to 2",), "the layers 1 to 2"), (("1", "4"), "the layers 1, 4")]
)
def test_one_layer_is_named_as_one(layers: tuple[str, ...], words: str) -> None:
    assert named(layers) == words
