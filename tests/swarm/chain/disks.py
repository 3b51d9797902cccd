"""Disks that fail when a test says so."""

from tests.swarm.p2p.in_memory import MemoryDisk


class FailingDisk(MemoryDisk):
    """Fails at one change of its files, counted from 1; a crashed machine changes nothing more.

    :ivar changes: so many were asked for
    """

    def __init__(self, files: dict[str, bytes], fails_at: int, crash: bool = False, done: bool = False) -> None:
        """:param done: the failing change has taken effect all the same"""
        super().__init__()
        self.files = dict(files)
        self.changes = 0
        self._fails_at, self._crash, self._done = fails_at, crash, done

    async def write(self, name: str, content: bytes, /) -> None:
        if fails := self._fails():
            if self._done and self.changes == self._fails_at:
                await super().write(name, content)
            raise fails
        await super().write(name, content)

    async def remove(self, name: str, /) -> None:
        if fails := self._fails():
            if self._done and self.changes == self._fails_at:
                await super().remove(name)
            raise fails
        await super().remove(name)

    def _fails(self) -> OSError | None:
        self.changes += 1
        if self.changes == self._fails_at or (self._crash and self.changes > self._fails_at):
            return OSError("no space is left on the disk")
        return None
