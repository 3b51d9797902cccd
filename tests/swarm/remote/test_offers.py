"""What peers offer each other, in the directory."""

from dedloc_kit.swarm.remote.offers import _changed
from tests.swarm.pipeline.local_pipeline import offer


def test_a_record_is_not_stored_anew_for_what_nobody_acts_on_at_once() -> None:
    told = offer(stage=1)
    assert not _changed(offer(stage=1, in_flight=((1, 0), (0, 2)), queue=3, driven=7, time=2.0), told)
    assert _changed(offer(stage=2), told)
