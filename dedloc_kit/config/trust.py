"""Who may join and what members are believed: the sections `access` and `trust`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dedloc_kit.config.section import LATER, Section

HubName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,95}$")]
"""Of an account or an organization on the Hub."""


class AccessConfig(Section):
    """Who may join; every peer checks it of the others."""

    who: Literal["open", "invite", "hub"] = "open"
    """Who may join: `open`, everybody with the invitation; `invite`, people with a personal code (`dedloc run invite`);
    `hub`, accounts and members of organizations of the Hugging Face Hub."""
    accounts: tuple[HubName, ...] = Field(default=(), max_length=1000, strict=False)  # not strict: a list will do
    """Accounts of the Hub that may join, with `who = "hub"`."""
    organizations: tuple[HubName, ...] = Field(default=(), max_length=100, strict=False)
    """Organizations of the Hub whose members may join, with `who = "hub"`."""

    @model_validator(mode="after")
    def _lists_belong_to_hub(self) -> "AccessConfig":
        if (self.who == "hub") != bool(self.accounts or self.organizations):
            raise ValueError(
                'access.accounts or access.organizations say whom access.who = "hub" admits, and only then'
            )
        return self


class TrustConfig(Section):
    """How far peers trust what other peers send."""

    aggregator: Literal["mean", "clip"] = "mean"
    """How gradients are aggregated. `mean`: weighted by samples. `clip`: nobody counts for more samples or with a
    longer gradient than the median of the round, which bounds what a few attackers can do in a step."""
    checks: Annotated[Literal["off", "on"], LATER] = "off"
    """Whether peers commit to their work, and some of it is computed again by others, so that cheaters are banned."""
    share: Annotated[float, Field(gt=0.0, le=1.0), LATER] = 0.02
    """The share of contributions that is checked; it rises to 0.3 after a conviction, and for newcomers."""
