"""What the configurations of a run and of a served model have in common: the swarm and its name."""

import hashlib
from typing import Annotated

from pydantic import Field, field_validator

from dedloc_kit.config.section import PLAIN_TEXT, Section
from dedloc_kit.config.trust import AccessConfig

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")]


class SwarmConfig(Section):
    """What all peers of one swarm share, whatever they do together. It is immutable: its hash names the swarm."""

    name: Name
    """Name of the run: lower-case letters, digits and dashes."""
    about: str = Field(default="", max_length=500, pattern=PLAIN_TEXT)
    """A sentence or two for volunteers: what the model is, and for whom."""
    access: AccessConfig = AccessConfig()
    """Who may join; `access = "invite"` is short for a section with `who`."""

    @field_validator("access", mode="before")
    @classmethod
    def _who_alone(cls, value: object) -> object:
        """`access = "invite"` is short for the section with this."""
        return {"who": value} if isinstance(value, str) else value

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]

    @property
    def run_id(self) -> str:
        """`NAME-FINGERPRINT`: peers with different configurations can never meet."""
        return f"{self.name}-{self.fingerprint}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The ids of what is averaged apart; none of a whole model, which goes by the id above."""
        return ()
