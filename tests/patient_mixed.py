"""The tiny model with experts for tests that compare numbers: nobody is left out because a machine is under load."""

from dedloc_kit.swarm.experts import deadline, service
from tests import tiny_mixed

deadline.FIRST_SECONDS = deadline.MIN_SECONDS = 60.0
service.STEP_SECONDS = 60.0

TASKS = tiny_mixed.TASKS
