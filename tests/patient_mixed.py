"""The tiny model with experts for tests that compare numbers: nobody is left out because a machine is under load,
and no host is new."""

from dedloc_kit.swarm.experts import deadline, member, service
from tests import tiny_mixed

deadline.FIRST_SECONDS = deadline.MIN_SECONDS = 60.0
service.STEP_SECONDS = 60.0
member.NEW_SECONDS = 0.0

TASKS = tiny_mixed.TASKS
