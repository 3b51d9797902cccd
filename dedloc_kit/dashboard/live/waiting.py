"""How much of the volunteers' time the run spends waiting for those who average, and which lent line would end that."""

from collections.abc import Sequence
from statistics import median

from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.auxiliary_peers import MUCH, AuxiliaryPeers, gain
from dedloc_kit.events import PeerSeen
from dedloc_kit.records.steps import GlobalStep

ROUNDS = 5
"""Fewer say little."""
OWN_LINES = 0.5
"""Where volunteers send at less than this part of what those who average could take from each, it is their own lines
that are slow, and no auxiliary peer changes that."""


def advice(run: RunConfig, steps: Sequence[GlobalStep], peers: Sequence[PeerSeen]) -> str:
    """What a lent line would change, in words; empty if that is little, or not known.

    What volunteers say of their speed counts only where the coordinator sees rounds follow each other without a pause.

    :param steps: the last ones
    """
    seen = [step for step in steps if step.average is not None]
    volunteers = [peer for peer in peers if not peer.follower]
    reducing = sum(peer.upload or 0.0 for peer in peers if not peer.client_mode)
    uploads = [peer.upload for peer in volunteers if peer.upload]
    rate = sum(peer.samples_per_second for peer in volunteers)
    if run.pipeline is not None or len(seen) < ROUNDS or not (reducing and uploads and rate > 0.0):
        return ""
    if median(uploads) < OWN_LINES * reducing / len(volunteers):
        return ""
    usual = median(sum(_parts(step)) for step in seen)
    average = median(step.average or 0.0 for step in seen)
    if run.averaging.overlap and median(step.compute or 0.0 for step in seen) > MUCH * usual:
        return ""  # batches fill while rounds go on, and when these are done nobody has waited

    def step(auxiliary: Sequence[AuxiliaryPeers]) -> float:
        lent = sum(each.count * each.line for each in auxiliary)
        return max(run.global_batch / rate, usual - average * lent / (reducing + lent))

    return gain(step, ())


def _parts(step: GlobalStep) -> tuple[float, ...]:
    return step.compute or 0.0, step.gather or 0.0, step.average or 0.0, step.apply or 0.0
