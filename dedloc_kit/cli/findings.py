"""What `dedloc doctor` says."""

from dataclasses import dataclass

from pydantic import BaseModel

from dedloc_kit.errors import UserError


@dataclass(frozen=True)
class Finding:
    what: str
    fix: str = ""
    """Empty if all is well."""
    must: bool = False
    """Nothing works before it is fixed."""

    @classmethod
    def of(cls, error: UserError | str) -> "Finding":
        """An error says what is wrong and, behind a semicolon, what to do."""
        what, _, fix = str(error).partition("; ")
        return cls(what, fix or "see above", must=True)


class Diagnosis(BaseModel):
    """What there is to say of a machine."""

    ok: bool
    """Nothing keeps it from taking part."""
    findings: tuple[Finding, ...]
