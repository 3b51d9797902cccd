"""The members of a group and what they announced, in an order that no leader decides."""

from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from dedloc_kit.swarm.averaging.group import read_members, sorted_group

BANDWIDTHS = {PeerID(bytes([18, 32]) + bytes([number] * 32)): float(1 + number) for number in range(6)}


def announced(bandwidth: float) -> bytes:
    return bytes(MSGPackSerializer.dumps([bandwidth, 0, MSGPackSerializer.dumps([6])]))


def test_every_order_of_a_leader_becomes_the_same_and_each_member_keeps_what_it_announced() -> None:
    peers = tuple(BANDWIDTHS)
    groups = []
    for first in range(len(peers)):
        shuffled = peers[first:] + peers[:first]
        gathered = tuple(announced(BANDWIDTHS[peer]) for peer in shuffled)
        groups.append(sorted_group(GroupInfo(b"group", shuffled, gathered)))
    assert len(set(groups)) == 1
    bandwidths, expected = read_members(groups[0])
    assert expected == 6
    assert dict(zip(groups[0].peer_ids, bandwidths, strict=True)) == BANDWIDTHS
