import logging
from multiprocessing import get_context
from queue import Queue

import pytest

from dedloc_kit.machine.logs import Warnings
from tests.hang import HANG

_log = logging.getLogger("dedloc_kit.some.module")


def talk(name: str) -> None:
    _log.info("%s is well", name)
    _log.warning("%s is at %d %%", name, 99)
    _log.error("%s is lost", name)
    logging.getLogger("hivemind").warning("not ours")


@pytest.mark.child
def test_warnings_of_ours_are_handed_on_also_from_a_process_that_was_forked_since() -> None:
    told: Queue[str] = Queue()
    warnings = Warnings(told.put)
    try:
        talk("this one")
        assert told.get_nowait() == "this one is at 99 %"
        child = get_context("fork").Process(target=talk, args=["another one"])
        child.start()
        assert told.get(timeout=HANG) == "another one is at 99 %"
        child.join(HANG)
        assert child.exitcode == 0
    finally:
        warnings.close()
    talk("it")
    assert told.empty()
