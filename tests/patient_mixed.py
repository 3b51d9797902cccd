"""The tiny model with experts for tests that compare numbers: nobody is left out because a machine is under load,
no host is new, and all lines count alike."""

from dedloc_kit.swarm.experts import deadline, member, placing, service
from tests import tiny_mixed

deadline.FIRST_SECONDS = deadline.MIN_SECONDS = 60.0
service.STEP_SECONDS = 60.0
member.NEW_SECONDS = 0.0
placing.FASTER = 1.0

TASKS = tiny_mixed.TASKS
