"""In which rounds this peer has introduced itself: two introductions to one round convict it (`audits.equivocation`).

Whoever leads a group names it, and could give two the same name to make an honest member's retry look like that; also
of a member that was started again meanwhile. So the names of the last few lie on the disk.
"""

import logging
import os
from pathlib import Path

REMEMBERED = 256
"""Rounds; two introductions count only if they are for the same global step, too."""

_log = logging.getLogger(__name__)


class IntroducedRounds:
    """Of this peer.

    :param path: a file of nothing else, a name in each line; without it there were none
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._groups = path.read_text(errors="replace").split()[-REMEMBERED:]
        except OSError:
            self._groups = []

    def add(self, group: str) -> None:
        """This peer is about to sign an introduction; raises ValueError if it has signed one for this round."""
        if group in self._groups:
            raise ValueError("whoever leads names a round as one of before")
        self._groups = [*self._groups, group][-REMEMBERED:]
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text("\n".join(self._groups))
            os.replace(fresh, self._path)
        except OSError as error:  # then this session alone remembers them
            _log.warning("%s cannot be written (%s)", self._path, error.strerror)
