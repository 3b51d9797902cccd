"""Who may join and what members are believed: the sections `access` and `trust`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dedloc_kit.config.section import LATER, Section

HubName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,95}$")]
"""Of an account or an organization on the Hub."""


class AccessConfig(Section):
    """Who may join. Every peer of the run holds the others to it."""

    who: Literal["open", "invite", "hub"] = "open"
    """`open`: whoever has the invitation. `invite`: whoever the organizer has given a personal code (`dedloc run
    invite`). `hub`: the accounts of the Hugging Face Hub below and the members of the organizations below."""
    accounts: tuple[HubName, ...] = Field(default=(), max_length=1000, strict=False)  # not strict: a list will do
    """With `hub`."""
    organizations: tuple[HubName, ...] = Field(default=(), max_length=100, strict=False)
    """With `hub`."""

    @model_validator(mode="after")
    def _lists_belong_to_hub(self) -> "AccessConfig":
        if (self.who == "hub") != bool(self.accounts or self.organizations):
            raise ValueError(
                'access.accounts or access.organizations say whom access.who = "hub" admits, and only then'
            )
        return self


class TrustConfig(Section):
    """What members of a round are believed."""

    aggregator: Literal["mean", "clip"] = "mean"
    """What becomes of their gradients. `mean`: each counts for the samples that it claims, whatever it sends. `clip`:
    nobody counts for more samples, or with a longer gradient, than is usual among the members of the round, so that
    a few of them cannot carry a step away. It bounds what strangers can do and does not find out who lies.
    What machines bring that are faster than most is left out, unless checks have confirmed it."""
    checks: Annotated[Literal["off", "on"], LATER] = "off"
    """Whether members commit to what they send and what they have computed, and some of it is computed again by others,
    so that who cheats is found and sent away."""
    share: Annotated[float, Field(gt=0.0, le=1.0), LATER] = 0.02
    """Of all contributions are checked, as long as nobody cheats."""
