"""What a peer may be asked for when it is checked, on its disk: the last few rounds' messages, residuals, work, and the
parameters of the last few steps."""

import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS


class Kept:
    """The newest few lots of parts, such as the messages of a round; each part is read by itself.

    They are for this process alone: whoever starts again has committed to nothing yet. So nothing is synced, and what
    lies in the folder is thrown away at the beginning and at the end.

    :param folder: of nothing else; raises OSError if it cannot be written
    :param lots: how many are kept; the oldest goes when another one comes
    """

    def __init__(self, folder: Path, lots: int) -> None:
        if lots < 1:
            raise ValueError(f"{lots} lots")
        self._folder, self._most = folder, lots
        self._lock = threading.Lock()
        self._ends: dict[str, list[int]] = {}
        self._files: dict[str, Path] = {}
        self._written = 0
        self.close()
        folder.mkdir(parents=True)

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Keep a lot, in the place of the one of that name if there is one.

        Raises OSError if the disk is full: this lot is not kept then, those of before are. Raises ValueError for more
        parts than can be committed to.
        """
        with self._lock:
            path = self._folder / str(self._written)
            self._written += 1
        try:
            with path.open("wb") as file:
                sizes = [file.write(part) for part in parts]
            if len(sizes) > MAX_CONTENTS:
                raise ValueError(f"{len(sizes)} parts; at most {MAX_CONTENTS} can be kept together")
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        with self._lock:
            old = [name] if name in self._files else list(self._files)[: max(0, len(self._files) + 1 - self._most)]
            for each in old:
                del self._ends[each]
                self._files.pop(each).unlink(missing_ok=True)
            self._files[name], self._ends[name] = path, [0, *accumulate(sizes)]

    def part(self, name: str, number: int) -> bytes | None:
        """One part of a lot; none if it is not kept (any more), or there is none of that number."""
        with self._lock:
            ends, path = self._ends.get(name), self._files.get(name)
            if ends is None or path is None or not 0 <= number < len(ends) - 1:
                return None
            begin, end = ends[number : number + 2]
            with suppress(OSError), path.open("rb") as file:  # the user may have tidied up
                file.seek(begin)
                found = file.read(end - begin)
                return found if len(found) == end - begin else None
            return None

    def close(self) -> None:
        """Throw all of it away."""
        with self._lock:
            self._ends, self._files = {}, {}
            shutil.rmtree(self._folder, ignore_errors=True)
