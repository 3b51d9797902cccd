"""How the members of a group find each other; the real service, in one process."""

import asyncio
import hashlib
from collections.abc import Collection
from typing import Any

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.averaging.matchmaking.group import Group, GroupRequest, Join, Member, Verdict
from dedloc_kit.swarm.averaging.matchmaking.grouping import OneGroup
from dedloc_kit.swarm.averaging.matchmaking.search import GroupService, NoGroup
from dedloc_kit.swarm.network.service import encode
from tests.hang import HANG
from tests.swarm.harness import progress
from tests.swarm.local_network import LocalNetwork


class Meeting:
    """Peers that look for their group."""

    def __init__(self, *peers: str, clients: Collection[str] = ()) -> None:
        self.network = LocalNetwork()
        self.services = {
            peer: GroupService(peer, self.network.endpoint(peer), client_mode=peer in clients) for peer in peers
        }
        self.known: dict[str, Progress] = {p: progress(client_mode=p in clients) for p in peers}
        for peer, service in self.services.items():
            self.network.serve(peer, service)

    def request(self, peer: str, **values: Any) -> GroupRequest:
        others = {other: told for other, told in self.known.items() if other != peer}
        leaders = OneGroup(1).leaders("ab", peer, False, others, self.known[peer].client_mode)
        usual = {"step": 5, "after": "ab", "leaders": leaders, "expected": frozenset(others), "unwelcome": frozenset()}
        return GroupRequest(**{**usual, "window": 10.0, **values})

    def find(self, peer: str, **values: Any) -> asyncio.Task[Group]:
        return asyncio.create_task(self.services[peer].find(self.request(peer, **values)))


def test_all_who_are_expected_form_one_group_in_an_order_that_no_leader_decides() -> None:
    async def meet() -> None:
        meeting = Meeting("a", "b", "c", "d", clients=("c",))
        async with asyncio.timeout(HANG):
            groups = await asyncio.gather(*(meeting.find(peer, bandwidth=2.0) for peer in "badc"))
        assert len(set(groups)) == 1
        assert groups[0].peers == ("a", "b", "c", "d")
        assert [member.client_mode for member in groups[0].members] == [False, False, True, False]

    in_own_loop(meet())


def test_a_group_stands_without_who_does_not_come_when_the_window_is_over() -> None:
    async def meet() -> None:
        meeting = Meeting("a", "b", "c")
        async with asyncio.timeout(HANG):
            groups = await asyncio.gather(*(meeting.find(peer, window=0.5) for peer in "ab"))
        assert groups[0] == groups[1]
        assert groups[0].peers == ("a", "b")

    in_own_loop(meet())


def test_who_finds_nobody_is_told_so_and_may_look_again() -> None:
    async def meet() -> None:
        meeting = Meeting("a", "b")
        with pytest.raises(TimeoutError):
            await meeting.find("a", window=-4.9)  # patience is twice that and ten seconds
        async with asyncio.timeout(HANG):
            groups = await asyncio.gather(*(meeting.find(peer) for peer in "ab"))
        assert groups[0] == groups[1]

    in_own_loop(meet())


@pytest.mark.parametrize(
    "values", [{"step": 6}, {"after": "cd"}, {"unwelcome": frozenset("ab")}], ids=["step", "state", "unwelcome"]
)
def test_peers_of_another_step_or_state_or_that_are_not_wanted_never_meet(values: dict[str, Any]) -> None:
    async def meet() -> None:
        meeting = Meeting("a", "b")
        leader = next(peer for peer in "ab" if not meeting.request(peer).leaders)
        follower = "ab".replace(leader, "")
        looking = [meeting.find(leader, window=0.3, **values), meeting.find(follower, window=0.3)]
        done, _ = await asyncio.wait(looking, timeout=1.5)
        assert not done
        for task in looking:
            task.cancel()

    in_own_loop(meet())


def test_a_leader_that_is_cut_off_costs_its_followers_nothing_but_time() -> None:
    async def meet() -> None:
        meeting = Meeting("a", "b", "c", "d")
        leader = next(peer for peer in "abcd" if not meeting.request(peer).leaders)
        others = "abcd".replace(leader, "")[1:]
        leading = meeting.find(leader)
        following = [meeting.find(peer, window=1.0) for peer in others]
        async with asyncio.timeout(HANG):
            while not all(meeting.services[peer].follows(leader) for peer in others):
                await asyncio.sleep(0.01)
            meeting.network.cut(leader)
            groups = await asyncio.gather(*following)
        assert groups[0] == groups[1]
        assert groups[0].peers == tuple(others)
        leading.cancel()

    in_own_loop(meet())


@pytest.mark.parametrize("clients", ["", "b"], ids=["reachable", "client"])
def test_a_leader_that_was_waited_for_in_vain_is_asked_again_when_nobody_else_comes(clients: str) -> None:
    """It may wait longer than those who follow it: for somebody of whom they do not know, or who is gone."""

    async def meet() -> None:
        meeting = Meeting("a", "b", clients=clients)
        leader = "a" if clients else next(peer for peer in "ab" if not meeting.request(peer).leaders)
        follower = "ab".replace(leader, "")
        leading = meeting.find(leader, expected=frozenset({follower, "gone"}))
        with pytest.raises(NoGroup) as found:
            await meeting.find(follower, window=-4.7)  # patience is twice that and ten seconds
        assert found.value.leader == leader
        leading.cancel()
        await asyncio.wait([leading])
        async with asyncio.timeout(HANG):
            groups = await asyncio.gather(meeting.find(leader), meeting.find(follower, window=0.2))
        assert groups[0] == groups[1]

    in_own_loop(meet())


def test_those_who_follow_a_leader_that_others_do_not_know_yet_end_up_in_one_group_with_them() -> None:
    """Each of the two leaders waits for those who wait with the other one."""

    async def meet() -> None:
        meeting = Meeting("a", "b", "c", "d", "e")
        ranked = sorted("abcde", key=lambda peer: hashlib.sha256(f"ab {peer}".encode()).digest())
        newcomer, leads, knows, *others = ranked
        before = {peer: frozenset(ranked) - {peer, newcomer} for peer in (leads, *others)}
        looking = [meeting.find(newcomer, window=60.0), meeting.find(knows, window=60.0)]
        for peer in (leads, *others):
            first = tuple(leader for leader in meeting.request(peer).leaders if leader != newcomer)
            looking.append(meeting.find(peer, window=60.0, leaders=first, expected=before[peer]))
        async with asyncio.timeout(HANG):
            while not (meeting.services[knows].follows(newcomer) and meeting.services[others[0]].follows(leads)):
                await asyncio.sleep(0.01)
            for peer in (*others, leads):
                meeting.services[peer].widen(meeting.request(peer, window=60.0))
            groups = await asyncio.gather(*looking)
        assert len(set(groups)) == 1
        assert groups[0].peers == ("a", "b", "c", "d", "e")

    in_own_loop(meet())


def test_a_group_takes_in_who_is_late_as_long_as_the_batch_is_not_nearly_full() -> None:
    async def meet() -> None:
        meeting = Meeting("a", "b", "c")
        leader, follower, late = sorted("abc", key=lambda peer: len(meeting.request(peer).leaders))
        pair = ((leader, frozenset((follower,))), (follower, frozenset((leader,))))
        looking = [meeting.find(peer, expected=other, window=60.0, open_for=60.0) for peer, other in pair]
        async with asyncio.timeout(HANG):
            while not meeting.services[follower].follows(leader):
                await asyncio.sleep(0.01)
            looking.append(meeting.find(late, window=60.0))
            while not meeting.services[late].follows(leader):
                assert not any(task.done() for task in looking), "it stands though there is time"
                await asyncio.sleep(0.01)
            now = meeting.request(leader, expected=frozenset((follower,)), window=60.0)
            meeting.services[leader].widen(now)  # the batch is full sooner than it seemed
            groups = await asyncio.gather(*looking)
        assert len(set(groups)) == 1
        assert groups[0].peers == ("a", "b", "c")

    in_own_loop(meet())


def test_nobody_can_take_part_in_anothers_name() -> None:
    async def meet() -> None:
        meeting = Meeting("a", "b", "mallory")
        leader = next(peer for peer in "ab" if "b" not in meeting.request(peer).leaders or peer == "b")
        leading = meeting.find(leader, leaders=(), window=5.0)
        await asyncio.sleep(0)
        member = Member(peer="a" if leader == "b" else "b", bandwidth=None, client_mode=False)
        forged = encode(Join(step=5, after="ab", member=member))
        async with meeting.network.endpoint("mallory").open(leader, GroupService, forged) as stream:
            assert (await stream.receive_record(Verdict)).verdict == "no"
        leading.cancel()

    in_own_loop(meet())
