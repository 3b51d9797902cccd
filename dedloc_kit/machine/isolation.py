"""How every process of ours starts: nothing is imported from the folder in which the user happens to stand."""

import os
from collections.abc import Mapping


def isolated(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process, and more, for a Python process of ours and all that it starts.

    `python -m` puts the current folder before the standard library, where a `random.py` or a folder `datasets` would
    hide what is needed. PYTHONSAFEPATH keeps it out here and in grandchildren, such as those of torch.
    Python's isolated mode would also leave out what people have put there on purpose: PYTHONPATH, and the packages of
    `pip install --user`, with which the kit itself may have come. An empty part of PYTHONPATH, as in
    `PYTHONPATH=$PYTHONPATH:/somewhere`, means the current folder again, and is hardly ever on purpose.
    """
    given = {**os.environ, **(environment or {})}
    path = os.pathsep.join(part for part in given.pop("PYTHONPATH", "").split(os.pathsep) if part)
    return {**given, **({"PYTHONPATH": path} if path else {}), "PYTHONSAFEPATH": "1"}
