"""tmp"""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Account:
    name: str
    anonymous: bool
    token: str | None = field(default=None, repr=False)
    warning: str | None = None


def who_am_i(chosen: str | None, folder: Path) -> Account:
    return Account(chosen or "anonymous", not chosen)
