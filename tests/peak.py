"""How much memory this process takes at most while something happens."""

import threading
from pathlib import Path


def held() -> int:
    """Bytes that no file has."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(1024 * int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))


class Peak(threading.Thread):
    """The most that was held at any of many moments, beyond what was held before."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._most = self._before = held()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.002):
            self._most = max(self._most, held())

    def end(self) -> int:
        self._over.set()
        self.join()
        return max(self._most, held()) - self._before
