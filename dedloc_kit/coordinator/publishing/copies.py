"""The whole ledger of a run as its coordinator hands it out, over HTTP or on the Hub."""

import tempfile
from contextlib import closing
from pathlib import Path

from dedloc_kit.client import fetch_ledger
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, ledger_copy
from dedloc_kit.ledger import Ledger
from dedloc_kit.ledger.copying import replace, restore
from dedloc_kit.records.contributors import MAX_LEDGER_BYTES


class Copies:
    """Takes the first copy that can be had.

    :param url: of the coordinator, if it is known
    :param repository: of the run on the Hub, if it is known
    :param folder: holds the ledger that the copy takes the place of
    """

    def __init__(self, url: str | None, repository: str | None, folder: Path) -> None:
        self._url, self._repository, self._folder = url, repository, folder

    def restore_newer(self, beyond: int) -> str | None:
        """Let the ledger be a copy that reaches beyond this global step; whose it is, none if there is no such copy."""
        for source, fetched in (("the coordinator's", self._from_coordinator), ("that on the Hub", self._from_hub)):
            with tempfile.TemporaryDirectory(dir=self._folder) as place:
                try:
                    copy = fetched(Path(place))
                    if copy is None:
                        continue
                    restore(Path(place) / "ledger.sqlite", copy)
                except (UserError, HubUnavailable, OSError):
                    continue
                with closing(Ledger(Path(place) / "ledger.sqlite", read_only=True)) as ledger:
                    newer = ledger.last_step() > beyond
                if newer:
                    replace(self._folder / "ledger.sqlite", Path(place) / "ledger.sqlite")
                    return source
        return None

    def _from_coordinator(self, place: Path) -> Path | None:
        if self._url is None:
            return None
        fetch_ledger(self._url, place / "ledger.zip", MAX_LEDGER_BYTES)
        return place / "ledger.zip"

    def _from_hub(self, _place: Path) -> Path | None:
        return None if self._repository is None else ledger_copy(self._repository)
