"""Who is to hold which experts."""

from collections import Counter
from dataclasses import replace

import pytest
from hivemind.utils import MSGPackSerializer

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.records.experts import MAX_ASSIGNED_CELLS, MAX_ASSIGNED_HOSTS, Assigned
from dedloc_kit.swarm.experts.offer import layers_of, names_in
from dedloc_kit.swarm.experts.placing import STEADY_SECONDS, Holder, Plan, Planner, assigned, plan, plan_of
from dedloc_kit.swarm.network.kinds import HOSTS
from tests.swarm.experts.local_hosts import offer

NAMES = [ExpertName(0, row, column) for row in range(4) for column in range(3)]


def settled(hosts: dict[str, Holder], before: Plan | None = None) -> Plan:
    """What it comes to once everyone has what it is to have."""
    made = before or Plan()
    for _ in range(3):
        made = plan(NAMES, hosts, made)
        hosts = {
            peer: replace(
                host,
                keeps={name for name, keeper in made.keepers.items() if keeper == peer},
                copies={name for name, stand_in in made.stand_ins.items() if stand_in == peer},
            )
            for peer, host in hosts.items()
        }
    return made


def test_every_expert_has_a_keeper_and_a_stand_in_on_different_peers_and_none_has_many_more_than_another() -> None:
    made = settled({"a": Holder(20), "b": Holder(20), "c": Holder(20)})
    assert made.keepers.keys() == made.stand_ins.keys() == set(NAMES)
    assert all(made.keepers[name] != made.stand_ins[name] for name in NAMES)
    counts = Counter(made.keepers.values()).values()
    assert max(counts) - min(counts) <= 2


def test_nobody_gets_more_than_it_has_room_for_and_the_rest_is_the_organizers() -> None:
    made = settled({"a": Holder(5), "b": Holder(3)})
    assert Counter([*made.keepers.values(), *made.stand_ins.values()]) == {"a": 5, "b": 3}
    assert settled({}).keepers == {}


def test_a_newcomer_gets_copies_and_then_keeps_half_while_nothing_else_moves() -> None:
    alone = settled({"a": Holder(100)})
    assert set(alone.keepers.values()) == {"a"}
    a = Holder(100, keeps=set(NAMES))
    first = plan(NAMES, {"a": a, "b": Holder(100)}, alone)
    assert first.keepers == alone.keepers, "b has nothing yet"
    assert set(first.stand_ins.values()) == {"b"}
    later = settled({"a": a, "b": Holder(100)}, alone)
    assert Counter(later.keepers.values()) == {"a": 6, "b": 6}


def test_who_stands_in_keeps_what_a_host_kept_that_is_gone_and_somebody_else_stands_in() -> None:
    three = {"a": Holder(20), "b": Holder(20), "c": Holder(20)}
    before = settled(three)
    after = settled({peer: three[peer] for peer in "bc"}, before)
    for name in NAMES:
        right = before.keepers[name] if before.keepers[name] != "a" else before.stand_ins[name]
        if before.stand_ins[name] == "a" or before.keepers[name] == "a":
            assert {after.keepers[name], after.stand_ins[name]} == {"b", "c"}
        else:
            assert after.keepers[name] == right


def test_an_organizer_that_starts_again_leaves_everything_where_it_is() -> None:
    before = settled({"a": Holder(20), "b": Holder(20)})
    hosts = {
        peer: Holder(
            20,
            {name for name, keeper in before.keepers.items() if keeper == peer},
            {name for name, stand_in in before.stand_ins.items() if stand_in == peer},
        )
        for peer in "ab"
    }
    assert plan(NAMES, hosts, Plan()) == before


def test_who_has_a_slow_line_keeps_fewer_and_copies_by_its_room() -> None:
    made = settled({"a": Holder(24), "b": Holder(24, line=0.25), "c": Holder(24)})
    counts = Counter(made.keepers.values())
    assert counts["b"] <= 2
    assert abs(counts["a"] - counts["c"]) <= 2
    assert Counter([*made.keepers.values(), *made.stand_ins.values()])["b"] >= 7
    slower = settled({"a": Holder(24), "b": Holder(24, line=0.25, keeps=NAMES)}, Plan(dict.fromkeys(NAMES, "b")))
    assert Counter(slower.keepers.values()) == {"a": 10, "b": 2}, "who keeps more than its line takes gives some"


def test_who_has_just_come_stands_in_and_keeps_only_what_a_host_kept_that_is_gone() -> None:
    new = {"a": Holder(20, new=True), "b": Holder(20, new=True)}
    first = settled(new)
    assert not first.keepers, "the organizer does"
    assert Counter(first.stand_ins.values()) == {"a": 6, "b": 6}
    then = settled({peer: replace(host, new=False) for peer, host in new.items()}, first)
    assert Counter(then.keepers.values()) == Counter(then.stand_ins.values()) == {"a": 6, "b": 6}
    assert all(then.keepers[name] == peer for name, peer in first.stand_ins.items()), "nothing is sent for that"

    alone = settled({"a": Holder(20)})
    later = settled({"a": Holder(20, keeps=NAMES), "b": new["b"]}, alone)
    assert later.keepers == alone.keepers
    assert set(later.stand_ins.values()) == {"b"}
    assert set(settled({"b": new["b"]}, later).keepers.values()) == {"b"}


def test_a_line_counts_beside_the_usual_one_and_no_word_of_its_host_makes_it_any_larger() -> None:
    now = [0.0]
    planner = Planner(NAMES, 1, lambda: now[0])
    offers = {peer: offer([], room=100) for peer in "abc"}

    def kept(lines: dict[str, float | None], names: dict[str, Holder] | None = None) -> dict[str, int]:
        planner.plan = Plan()
        planner.look(offers, names or {peer: Holder() for peer in offers}, lines, ())
        return Counter(planner.plan.keepers.values())

    assert kept({}) == {"a": 4, "b": 4, "c": 4}
    assert kept({"a": 1e6, "b": 1e6, "c": 1e12}) == {"a": 2, "b": 2, "c": 8}
    assert kept({"a": 1e6, "b": 1e6, "c": 3e6}) == {"a": 2, "b": 2, "c": 8}, "it is not yet another one"
    assert kept({"a": 1e6, "b": 1e6, "c": 1e6}) == {"a": 2, "b": 2, "c": 8}, "so soon it moves nothing"
    now[0] += STEADY_SECONDS + 1
    assert kept({"a": 1e6, "b": 1e6, "c": 1e6}) == {"a": 4, "b": 4, "c": 4}


def test_the_planner_counts_by_bytes_and_leaves_out_who_leaves_or_has_no_room() -> None:
    planner = Planner(NAMES, 100)
    offers = {
        "a": offer([], room=450),
        "b": offer([], room=1000, state="leaving"),
        "c": offer([]),
    }
    planner.look(offers, {peer: Holder() for peer in offers}, {}, ())
    assert Counter(planner.plan.keepers.values()) == {"a": 4}
    assert planner.said is not None
    assert plan_of(planner.said, NAMES) == planner.plan
    assert planner.said.hosts == ("a", "b"), "who leaves may still have what others are to get"


def test_after_the_run_has_gone_back_who_still_holds_what_it_has_left_gets_nothing() -> None:
    planner = Planner(NAMES, 1)
    offers = {peer: offer([], room=100) for peer in "ab"}
    old, empty = Holder(keeps=set(NAMES)), Holder()
    planner.look(offers, {"a": old, "b": empty}, {}, ())
    assert set(planner.plan.keepers.values()) == {"a"}
    planner.begin_anew({"a": old, "b": empty})
    planner.look(offers, {"a": old, "b": empty}, {}, ())
    assert planner.stale == {"a"}
    assert set(planner.plan.keepers.values()) == {"b"}
    planner.look(offers, {"a": empty, "b": Holder(keeps=set(NAMES))}, {}, ())
    assert not planner.stale
    assert set(planner.plan.stand_ins.values()) == {"a"}


def test_the_largest_assignment_fits_into_a_record_and_of_more_experts_none_is_assigned() -> None:
    names = [ExpertName(layer, row, column) for layer in range(2) for row in range(32) for column in range(32)]
    assert len(names) == MAX_ASSIGNED_CELLS
    hosts = {f"12D3KooW{at:044d}": Holder(2 * len(names)) for at in range(MAX_ASSIGNED_HOSTS)}
    made = plan(names, hosts, Plan())
    said = assigned(made, names, hosts)
    assert plan_of(said, names) == made
    layers = layers_of(names, (32, 32))
    sent = offer([], assigned=said).model_copy(update={"layers": layers, "copies": layers})
    assert names_in(sent.copies, (32, 32)) == set(names)
    assert len(MSGPackSerializer.dumps(sent.model_dump())) < HOSTS.bytes - 1000
    planner = Planner([*names, ExpertName(2, 0, 0)], 1)
    planner.look({"a": offer([], room=10**6)}, {"a": Holder()}, {}, ())
    assert planner.plan == Plan()


@pytest.mark.parametrize(
    "values",
    [
        {"hosts": ("a",), "keepers": b"\x01", "stand_ins": b"\xff"},
        {"hosts": ("a",), "keepers": b"\x00", "stand_ins": b"\x01"},
        {"hosts": ("a",), "keepers": b"\x00\x00", "stand_ins": b"\xff"},
        {"hosts": ("a",) * 65, "keepers": b"", "stand_ins": b""},
        {"hosts": (), "keepers": b"\xff" * 2049, "stand_ins": b"\xff" * 2049},
    ],
)
def test_an_assignment_that_names_nobody_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Assigned"):
        Assigned.parse(values)
