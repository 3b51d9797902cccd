"""How the rows of a round meet; the real services, in one process."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.averaging.matchmaking import row_meeting
from dedloc_kit.swarm.averaging.matchmaking.group import Coming, Group, GroupRequest, Member, RowCall, Verdict
from dedloc_kit.swarm.averaging.matchmaking.grouping import OneGroup
from dedloc_kit.swarm.averaging.matchmaking.row_meeting import LARGEST, Matchmaking, RowJoin, RowService, evened, ranked
from dedloc_kit.swarm.averaging.matchmaking.search import GroupService, NoGroup
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import Service, Stream, encode
from tests.hang import HANG
from tests.identities import an_identity
from tests.swarm.harness import progress
from tests.swarm.local_network import LocalNetwork

LONG, SHORT = 40.0, 3.0
DIVISION, STEP, AFTER = Division(3, 4), 5, "ab"
RUN_ID = "local-0123456789abcdef"
ORDER = ranked(AFTER, range(3))
"""The rows, first the one whose leader leads all."""


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> list[list[Signer]]:
    """Three of each row, in the order of the rows."""
    folder: Path = tmp_path_factory.mktemp("keys")
    found = defaultdict[int, list[Signer]](list)
    for number in range(200):
        signer = Signer(an_identity(folder / str(number)))
        found[DIVISION.row_of(signer.peer)].append(signer)
        if len(found) == 3 and min(map(len, found.values())) >= 3:
            break
    return [found[row][:3] for row in range(3)]


class Meeting:
    """Peers in rows that look for their group.

    :param signers: of each row
    """

    def __init__(self, signers: Sequence[Sequence[Signer]], clients: Collection[str] = ()) -> None:
        self.network = LocalNetwork()
        self.rows = [[signer.peer for signer in row] for row in signers]
        self.signers = {signer.peer: signer for row in signers for signer in row}
        self.known: dict[str, Progress] = {peer: progress(client_mode=peer in clients) for peer in self.signers}
        self.groups: dict[str, GroupService] = {}
        self.above: dict[str, RowService] = {}
        for peer in self.signers:
            endpoint, client = self.network.endpoint(peer), peer in clients
            groups = GroupService(peer, endpoint, client_mode=client)
            above = RowService(peer, endpoint, client_mode=client, followed=partial(getattr, groups, "followed"))
            for service in (groups, above):
                self.network.serve(peer, service)
            self.groups[peer], self.above[peer] = groups, above

    def row_of(self, peer: str) -> list[str]:
        return self.rows[DIVISION.row_of(peer)]

    def leaders(self, peer: str) -> tuple[str, ...]:
        others = {other: self.known[other] for other in self.row_of(peer) if other != peer}
        return OneGroup(1).leaders(AFTER, peer, False, others, self.known[peer].client_mode)

    def leader(self, row: int) -> str:
        return next(peer for peer in self.rows[row] if not self.leaders(peer))

    def comes(self, peer: str, **values: Any) -> bytes:
        member = Member(peer=peer, bandwidth=2.0, client_mode=self.known[peer].client_mode, group_size=9)
        said = {"run_id": RUN_ID, "step": STEP, "after": AFTER, "member": member}
        return self.signers[peer].sign(Coming(**{**said, **values}))

    def request(self, peer: str, window: float, **values: Any) -> GroupRequest:
        mine = DIVISION.row_of(peer)
        able = {
            row: tuple(p for p in peers if not self.known[p].client_mode)
            for row, peers in enumerate(self.rows)
            if row != mine
        }
        call = RowCall(
            DIVISION, self.comes(peer), {row: peers for row, peers in able.items() if peers}, frozenset(able)
        )
        usual = {"step": STEP, "after": AFTER, "leaders": self.leaders(peer), "unwelcome": frozenset(), "rows": call}
        usual |= {"expected": frozenset(self.row_of(peer)) - {peer}, "window": window}
        return GroupRequest(**{**usual, **values})

    def find(self, *peers: str, window: float = LONG, **values: Any) -> list[asyncio.Task[Group]]:
        """All these look for their group from now on."""
        return [
            asyncio.create_task(
                Matchmaking(self.groups[peer], self.above[peer]).find(self.request(peer, window, **values))
            )
            for peer in peers
        ]

    @property
    def everybody(self) -> list[str]:
        return [peer for row in self.rows for peer in row]

    def in_rows(self, group: Group) -> list[list[str]]:
        """The members of each row."""
        found = defaultdict[int, list[str]](list)
        for peer, row in zip(group.peers, group.rows, strict=True):
            found[row].append(peer)
        return sorted(found.values())


def meet(story: Callable[[], Awaitable[None]]) -> None:
    async def told() -> None:
        async with asyncio.timeout(HANG):
            await story()

    in_own_loop(told())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_three_rows_meet_in_one_group_that_all_hear_of_from_their_own_leaders(signers: list[list[Signer]]) -> None:
    async def story() -> None:
        meeting = Meeting(signers)
        asked = []
        connect = meeting.network.connect

        async def counted(me: str, peer: str, name: str) -> Stream:
            asked.append((me, peer, name))
            return await connect(me, peer, name)

        meeting.network.connect = counted  # type: ignore[method-assign]
        groups = await asyncio.gather(*meeting.find(*meeting.everybody))
        assert len(set(groups)) == 1
        assert groups[0].peers == tuple(sorted(meeting.everybody))
        assert meeting.in_rows(groups[0]) == sorted(map(sorted, meeting.rows))
        leaders = {meeting.leader(row) for row in range(3)}
        assert {me for me, _, name in asked if name == "rows"} == leaders - {meeting.leader(ORDER[0])}

    meet(story)


def test_a_row_that_does_not_come_in_the_window_is_left_out_like_a_member(signers: list[list[Signer]]) -> None:
    async def story() -> None:
        meeting = Meeting(signers)
        missing = meeting.rows[ORDER[1]]
        come = [peer for peer in meeting.everybody if peer not in missing]
        first = [peer for peer in come if peer in meeting.rows[ORDER[0]]]
        looking = meeting.find(*(peer for peer in come if peer not in first))
        other = meeting.leader(ORDER[2])
        looking += meeting.find(*first, window=SHORT)
        groups = await asyncio.gather(*looking)
        assert len(set(groups)) == 1
        assert groups[0].peers == tuple(sorted(come))
        assert other in groups[0].peers

    meet(story)


@pytest.mark.parametrize("place", [0, 1], ids=["of the row that leads all", "of another row"])
def test_a_row_whose_leader_dies_while_it_waits_comes_without_it(signers: list[list[Signer]], place: int) -> None:
    async def story() -> None:
        meeting = Meeting(signers)
        hit, other, late = ORDER[place], ORDER[1 - place], meeting.rows[ORDER[2]]
        dead = meeting.leader(hit)
        rest = [peer for peer in meeting.rows[hit] if peer != dead]
        dying = meeting.find(dead)
        looking = meeting.find(*rest, window=SHORT) + meeting.find(*meeting.rows[other])
        follower, followed = (meeting.leader(ORDER[1]), meeting.leader(ORDER[0]))
        await until(lambda: meeting.above[follower].followed == followed)
        await until(lambda: all(meeting.groups[peer].follows(dead) for peer in rest))
        meeting.network.cut(dead)
        looking += meeting.find(*late)
        groups = await asyncio.gather(*looking)
        assert len(set(groups)) == 1
        assert groups[0].peers == tuple(sorted(set(meeting.everybody) - {dead}))
        dying[0].cancel()

    meet(story)


def test_clients_whose_row_has_nobody_who_can_be_reached_take_part_in_another_row(signers: list[list[Signer]]) -> None:
    async def story() -> None:
        clients = [signer.peer for signer in signers[ORDER[1]]]
        meeting = Meeting(signers, clients)
        hosts = meeting.rows[ORDER[2]]
        alone = frozenset({ORDER[0], ORDER[2]})
        looking = meeting.find(*clients, leaders=tuple(hosts))
        await asyncio.sleep(0)
        for peer in (*meeting.rows[ORDER[0]], *hosts):
            request = meeting.request(peer, LONG)
            assert request.rows is not None
            call = RowCall(DIVISION, request.rows.signed, request.rows.able, alone - {DIVISION.row_of(peer)})
            expected = request.expected | (frozenset(clients) if peer in hosts else frozenset())
            looking += meeting.find(peer, rows=call, expected=expected)
        groups = await asyncio.gather(*looking)
        assert len(set(groups)) == 1
        assert set(groups[0].peers) == {*meeting.rows[ORDER[0]], *hosts, *clients}
        reducing = [[peer for peer in row if peer not in clients] for row in meeting.in_rows(groups[0])]
        assert sorted(reducing) == sorted([sorted(meeting.rows[ORDER[0]]), sorted(hosts)])

    meet(story)


def lies(meeting: Meeting, mallory: Signer, victim: str) -> dict[str, tuple[bytes, ...]]:
    """What a hostile row leader may bring besides itself."""
    me = mallory.peer
    member = Member(peer=victim, bandwidth=2.0, client_mode=False, group_size=9)
    forged = mallory.sign(Coming(run_id=RUN_ID, step=STEP, after=AFTER, member=member))
    return {
        "a stranger": (meeting.comes(me), forged),
        "one who came to another round": (meeting.comes(me), meeting.comes(victim, after="cd")),
        "one who came to another run": (meeting.comes(me), meeting.comes(victim, run_id="other")),
        "itself twice": (meeting.comes(me), meeting.comes(me)),
        "others only": (meeting.comes(victim),),
        "nonsense": (meeting.comes(me), b"x" * 100),
    }


LIES = ("a stranger", "one who came to another round", "one who came to another run", "itself twice", "others only")


@pytest.mark.parametrize("lie", [*LIES, "nonsense"])
def test_a_row_is_not_taken_whose_leader_brings(signers: list[list[Signer]], lie: str) -> None:
    async def story() -> None:
        meeting = Meeting(signers)
        mallory = next(s for s in signers[ORDER[1]] if s.peer == meeting.leader(ORDER[1]))
        victim, top = meeting.rows[ORDER[2]][0], meeting.leader(ORDER[0])
        honest = [peer for peer in meeting.everybody if peer not in meeting.rows[ORDER[1]]]
        looking = meeting.find(*(peer for peer in honest if peer != meeting.leader(ORDER[2])))
        await until(lambda: meeting.above[top]._search is not None)
        party = lies(meeting, mallory, victim)[lie]
        join = encode(RowJoin(step=STEP, after=AFTER, row=ORDER[1], party=party))
        async with meeting.network.endpoint(mallory.peer).open(top, RowService, join) as stream:
            assert (await stream.receive_record(Verdict)).verdict == "no"
        good = encode(RowJoin(step=STEP, after=AFTER, row=ORDER[1], party=(meeting.comes(mallory.peer),)))
        async with meeting.network.endpoint(mallory.peer).open(top, RowService, good) as stream:
            assert (await stream.receive_record(Verdict)).verdict == "wait"
            groups = await asyncio.gather(*looking, *meeting.find(meeting.leader(ORDER[2])))
        assert set(groups[0].peers) == {*honest, mallory.peer}

    meet(story)


def test_who_brings_anothers_members_changes_only_their_row(signers: list[list[Signer]]) -> None:
    async def story() -> None:
        meeting = Meeting(signers)
        mallory, top = meeting.leader(ORDER[1]), meeting.leader(ORDER[0])
        stolen, honest = meeting.rows[ORDER[2]], [*meeting.rows[ORDER[0]], *meeting.rows[ORDER[2]]]
        looking = meeting.find(*meeting.rows[ORDER[0]])
        await until(lambda: meeting.above[top]._search is not None)
        party = tuple(map(meeting.comes, (mallory, *stolen[:2])))
        join = encode(RowJoin(step=STEP, after=AFTER, row=ORDER[1], party=party))
        async with meeting.network.endpoint(mallory).open(top, RowService, join) as stream:
            assert (await stream.receive_record(Verdict)).verdict == "wait"
            groups = await asyncio.gather(*looking, *meeting.find(*stolen))
        assert len(set(groups)) == 1
        assert groups[0].peers == tuple(sorted([*honest, mallory]))

    meet(story)


class Silent(Service):
    """Takes everybody, and says nothing more."""

    def __init__(self, kind: type[Service]) -> None:
        self.name = kind.name
        self.asked = 0

    async def serve(self, peer: str, stream: Stream) -> None:
        self.asked += 1
        await stream.send(encode(Verdict(verdict="wait")))
        await stream.closed(HANG)


def test_a_leader_that_says_nothing_is_named_and_not_asked_again(signers: list[list[Signer]]) -> None:
    async def story() -> None:
        meeting = Meeting(signers)
        silent, kind = meeting.leader(ORDER[0]), Silent(GroupService)
        meeting.network.serve(silent, kind)
        rest = [peer for peer in meeting.rows[ORDER[0]] if peer != silent]
        for found in await asyncio.gather(*meeting.find(*rest, window=-3.5, rows=None), return_exceptions=True):
            assert isinstance(found, NoGroup)
            assert found.leader == silent
        asked = kind.asked
        looking = [meeting.find(peer, rows=None, expected=frozenset(rest) - {peer}) for peer in rest]
        groups = await asyncio.gather(*(task for tasks in looking for task in tasks))
        assert groups[0].peers == tuple(sorted(rest))
        assert kind.asked == asked

    meet(story)


def test_a_leader_of_rows_that_says_nothing_is_named_and_the_rows_meet_without_it(
    signers: list[list[Signer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_meeting, "MARGIN", 1.0)

    async def story() -> None:
        meeting = Meeting(signers)
        silent, kind = meeting.leader(ORDER[0]), Silent(RowService)
        meeting.network.serve(silent, kind)
        leaders = [meeting.leader(row) for row in ORDER[1:]]
        looking = meeting.find(*leaders, window=SHORT / 2, expected=frozenset())
        for found in await asyncio.gather(*looking, return_exceptions=True):
            assert isinstance(found, NoGroup)
            assert found.leader == silent
        asked, looking = kind.asked, []
        for row, other in (ORDER[1:], ORDER[:0:-1]):
            for peer in meeting.rows[row]:
                request = meeting.request(peer, LONG)
                assert request.rows is not None
                call = RowCall(DIVISION, request.rows.signed, request.rows.able, frozenset({other}))
                looking += meeting.find(peer, rows=call)
        groups = await asyncio.gather(*looking)
        assert len(set(groups)) == 1
        assert groups[0].peers == tuple(sorted(peer for row in ORDER[1:] for peer in meeting.rows[row]))
        assert kind.asked == asked

    meet(story)


def test_fewer_peers_than_rows_meet_in_one_row(signers: list[list[Signer]]) -> None:
    async def story() -> None:
        meeting = Meeting(signers)
        two = {row: meeting.rows[row][0] for row in ORDER[1:]}
        looking = []
        for row, peer in two.items():
            able = {other: (there,) for other, there in two.items() if other != row}
            call = RowCall(DIVISION, meeting.comes(peer), able, frozenset(able))
            looking += meeting.find(peer, leaders=(), expected=frozenset(), rows=call)
        groups = await asyncio.gather(*looking)
        assert groups[0] == groups[1]
        assert groups[0].peers == tuple(sorted(two.values()))
        assert groups[0].rows == ()

    meet(story)


def members(*rows: str) -> tuple[dict[str, Member], dict[str, int]]:
    """Of each row some who can be reached (r) and some who cannot (c)."""
    made = {
        f"{row}{kind}{number}": Member(
            peer=f"{row}{kind}{number}", bandwidth=1.0, client_mode=kind == "c", group_size=9
        )
        for row, kinds in enumerate(rows)
        for number, kind in enumerate(kinds)
    }
    return made, {peer: int(peer[0]) for peer in made}


@pytest.mark.parametrize(
    ("rows", "together"),
    [
        (("rrr", "rrr", "rrr"), "0 1 2"),
        (("rrrr", "rcccc", "rrr"), "0 12"),
        (("rrrrrrrr", "rrrrrrrrr", "rrcccccc", "rrr"), "0 1 23"),
        (("rc", "rc", "rc", "rc"), "01 23"),
        (("rc", "ccc"), "01"),
        (("rr",), "0"),
    ],
    ids=["alike", "one reducer", "far fewer than usual", "one each", "clients only", "one row"],
)
def test_rows_with_hardly_anybody_who_reduces_join_others(rows: tuple[str, ...], together: str) -> None:
    made, before = members(*rows)
    after = evened(made, before) or dict.fromkeys(made, 0)
    found = defaultdict[int, set[str]](set)
    for peer, row in after.items():
        if not made[peer].client_mode or not any(peer[0] == other[0] for other in made if not made[other].client_mode):
            found[row].add(peer[0])
    assert after.keys() == made.keys()
    assert sorted(found) == list(range(len(found)))
    assert " ".join(sorted("".join(sorted(row)) for row in found.values())) == together


def test_clients_leave_a_row_that_has_more_to_do_for_its_bandwidth_than_others() -> None:
    made, before = members("rrr" + 9 * "c", "rrr" + 9 * "c", "rrr" + 9 * "c")
    made |= {peer: made[peer].model_copy(update={"bandwidth": 2.0}) for peer in made if peer.startswith("1r")}
    made |= {peer: made[peer].model_copy(update={"bandwidth": None}) for peer in made if peer.startswith("0c")}
    after = evened(made, before)
    sizes = [sum(row == number for row in after.values()) for number in range(3)]
    assert sizes == [9, 18, 9]
    assert all(after[peer] == before[peer] for peer in made if not made[peer].client_mode)


def test_a_row_that_claims_all_bandwidth_does_not_get_everyone() -> None:
    made, before = members("rrr" + 9 * "c", "rrr" + 9 * "c", "rrr" + 9 * "c")
    made["2r0"] = made["2r0"].model_copy(update={"bandwidth": 1e30})
    after = evened(made, before)
    assert sum(row == 2 for row in after.values()) == LARGEST * 12
