"""From which countries volunteers take part; shown only where the organizer gives a database of countries.

What counts is the address at which the coordinator itself sees a peer, never what the peer says of itself. Only the
country is kept, and only in memory, for as long as the peer is there.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import maxminddb

from dedloc_kit.errors import UserError

_MAX_TITLE = 100
LOOK_SECONDS = 15.0
"""Between two looks for those whose country is not known."""
_CODE = re.compile(r"[A-Z]{2}")
_FIX = (
    "regions in coordinator.toml must be a country database as .mmdb, such as GeoLite2-Country of MaxMind or IP to "
    "Country Lite of DB-IP"
)


class Countries:
    """A database of countries in MaxMind's format, read whole: the file may be renewed meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises UserError with the fix if the file cannot be read or is another one."""
        try:
            self._database = maxminddb.open_database(path, maxminddb.MODE_MEMORY)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); {_FIX}") from None
        except Exception:  # whatever is in it: the reader raises what the bytes lead it to
            raise UserError(f"{path} is no database of addresses, or only a part of one; {_FIX}") from None
        metadata = self._database.metadata()
        kind = str(metadata.database_type)
        if "Country" not in kind:
            raise UserError(f"{path} is a database of another kind ({kind}); {_FIX}")
        description: Any = metadata.description
        title = description.get("en") if isinstance(description, dict) else None
        self.title = " ".join(str(title or kind).split())[:_MAX_TITLE]
        """How its makers call it; whoever shows what it tells names them."""

    def of(self, host: str) -> str | None:
        """The ISO 3166 code of the country that an address belongs to; private ones and many others have none."""
        try:
            record: Any = self._database.get(host)
            code = str(record["country"]["iso_code"])
        except Exception:  # it is not there, or in a damaged part of the file, which must not end the run
            return None
        return code if _CODE.fullmatch(code) else None


class Regions:
    """How many peers there are in which country.

    :param hosts: tells at which addresses the connected peers are seen, by peer id
    """

    def __init__(self, countries: Countries, hosts: Callable[[], Mapping[str, str]]) -> None:
        self._countries, self._hosts = countries, hosts
        self.title = countries.title
        self._known: dict[str, str] = {}
        self._due = -math.inf

    def count(self, peers: Set[str]) -> dict[str, int]:
        """The number of these peers by country, without those whose country is not known."""
        if peers - self._known.keys() and time.monotonic() >= self._due:
            self._due = time.monotonic() + LOOK_SECONDS
            found = {peer: self._countries.of(host) for peer, host in self._hosts().items() if peer in peers}
            self._known |= {peer: country for peer, country in found.items() if country is not None}
        self._known = {peer: country for peer, country in self._known.items() if peer in peers}
        return dict(Counter(self._known.values()))
