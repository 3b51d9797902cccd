"""What a volunteer needs to join a run, or why there is none now."""

import json
from typing import Annotated, Any, Literal, Self

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.places import check_names, published
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Url
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import UserError
from dedloc_kit.keys import has_signed, public, sign
from dedloc_kit.records.record import Address, Count, PeerId, Record, RunId
from dedloc_kit.validation import describe
from dedloc_kit.version import __version__

Version = Annotated[str, Field(max_length=32, pattern=r"^[0-9]+(\.?[0-9a-z]+)*$")]
"""Of dedloc_kit, as it is published, such as `0.1.0` or `1.0rc1`."""
WheelFile = Annotated[
    str, Field(max_length=200, pattern=r"^dedloc_kit-[0-9A-Za-z.+]+-py3-none-any\.whl#sha256=[0-9a-f]{64}$")
]
"""The name of a wheel and its digest, as pip and uv check it behind a URL."""
Signed = Annotated[str, Field(max_length=2048, pattern=r"^[0-9A-Za-z+/]*=*$")]
"""A key or a signature in base64; see `keys`."""


INVITATION_FILE = "invitation.json"
"""The invitation, in the coordinator's folder and in a run's Hub repository."""


class Refusal(Record):
    """Why a coordinator gives no invitation now."""

    reason: Literal["starting", "over", "full"]
    """It has not joined its own swarm yet; the last global step is done; there are as many volunteers as it wants."""


class Requirement(BaseModel):
    """The part of an invitation that every version of dedloc_kit understands: which version the run needs."""

    model_config = ConfigDict(frozen=True, strict=True)

    version: Version
    """The one that the coordinator runs."""

    def check(self) -> None:
        """Raises UserError with what to do if this is not the version that the run needs.

        It names no address to install from: whoever stands between may have written the invitation.
        """
        if self.version != __version__:
            raise UserError(
                f"this run uses dedloc_kit {self.version}, here is {__version__}; run the organizer's newest notebook, "
                "or ask the organizer for the line to install it with, and restart the kernel"
            )


class Invitation(Requirement):
    """What a volunteer needs to join. It holds no secret: a URL or a file may be passed on freely.

    The organizer's signature covers all but the addresses of peers, which may change at any time and anywhere: whoever
    answers there has to prove who it is.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["run", "serving"] = "run"
    """Whether a model is trained or served."""
    run_id: RunId
    organizer: PeerId
    """The coordinator's peer id: whose word counts. It is the hash of its key, so nobody else can speak for it."""
    url: Url | None = None
    """The coordinator's dashboard and API, if it is known; it serves the wheel of its version."""
    wheel: WheelFile | None = None
    """The file of the very dedloc_kit that the coordinator runs, below `/wheel/` of its address, with its digest."""
    peers: tuple[Address, ...] = Field(min_length=1, max_length=64)
    """Addresses of swarm members: the coordinator's, then those of volunteers who agree to that being public."""
    run: dict[str, Any]
    """The run's configuration, or that of the served model; its hash must be the fingerprint in `run_id`."""
    parameters: Count | None = None
    """Of the model, if known: a machine can tell whether it has the memory."""
    key: Signed = ""
    """The organizer's public key."""
    signature: Signed = ""

    @classmethod
    def of(
        cls,
        run: SwarmConfig,
        peers: tuple[str, ...],
        url: str | None = None,
        parameters: int | None = None,
        wheel: str | None = None,
    ) -> Self:
        """Of a coordinator that is the first of these peers; not signed yet."""
        return cls(
            version=__version__,
            kind="run" if isinstance(run, RunConfig) else "serving",
            run_id=run.run_id,
            organizer=peers[0].rpartition("/p2p/")[2],
            peers=peers,
            url=url,
            wheel=wheel,
            run=published(run) if isinstance(run, RunConfig) else run.model_dump(mode="json"),
            parameters=parameters,
        )

    @property
    def held_parameters(self) -> int | None:
        """Of what each volunteer holds, if that is known; which stage of a model it takes is found out later."""
        return None if self.run.get("pipeline") else self.parameters

    def signed(self, key: RSAPrivateKey) -> Self:
        """The same with the signature of this key, which must be the organizer's."""
        named = self.model_copy(update={"key": public(key)})
        return named.model_copy(update={"signature": sign(key, named._signed_part())})

    def _signed_part(self) -> bytes:
        values = self.model_dump(mode="json", exclude={"peers", "signature"})
        return b"dedloc_kit invitation " + json.dumps(values, sort_keys=True).encode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an invitation from JSON; raises UserError with what is wrong, such as that it was not signed."""
        try:
            # First of all: an invitation of another version may well have keys that are unknown here.
            Requirement.model_validate_json(text).check()
            read = cls.model_validate_json(text)
        except ValidationError as error:
            raise UserError(
                f"this is not an invitation ({describe(error, cls)}); ask the organizer for a new one"
            ) from None
        if not has_signed(read.organizer, read.key, read._signed_part(), read.signature):
            raise UserError(
                "this invitation is not signed by the organizer that it names, so somebody has changed it; "
                "ask the organizer for a new one"
            )
        return read

    def run_config(self) -> RunConfig:
        """The validated configuration; raises UserError if it is not the one that the run id names.

        All that it names is on the Hub, or not to be had (`run.places`): no name leads to a file of this machine.
        """
        if self.kind != "run":
            raise UserError(
                f"{self.run_id} is a model that is served, not trained; to serve it with the others: dedloc serve; "
                "to talk to it: notebooks/chat.ipynb"
            )
        try:
            run = parse_run(self.run)
        except UserError as error:
            raise UserError(
                f"the invitation's run configuration does not fit this version of dedloc_kit ({error}); "
                "install the version that the organizer uses"
            ) from None
        try:
            check_names(run)
        except UserError as error:
            raise UserError(f"the invitation cannot be used: {error}; ask the organizer for another one") from None
        self.check_fingerprint(run)
        return run

    def check_fingerprint(self, swarm: SwarmConfig) -> None:
        """Raises UserError if this configuration is not the one that the run id names."""
        if swarm.run_id != self.run_id:
            raise UserError(
                f"wrong fingerprint: the invitation says {self.run_id}, its configuration is {swarm.run_id}; "
                "ask the organizer for a new invitation and do not edit it"
            )
