"""What all records have in common, and the bounds that several share."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dedloc_kit.config.section import PLAIN_TEXT
from dedloc_kit.validation import describe

Count = Annotated[int, Field(ge=0, le=2**53)]
Time = Annotated[float, Field(ge=0, le=1e12)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
RunId = Annotated[str, Field(max_length=80, pattern=r"^[0-9A-Za-z._-]*$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]
# Text that a peer chose: no control characters, which could take over a terminal that shows it.
PeerText = Annotated[str, Field(max_length=64, pattern=PLAIN_TEXT)]
Address = Annotated[
    str, Field(max_length=160, pattern=r"^/(ip4|ip6|dns4|dns6|dns)/[0-9A-Za-z.:_-]+/tcp/\d{1,5}/p2p/[0-9A-Za-z]+$")
]
"""A multiaddress of a peer."""
MAX_REASON = 160
Reason = Annotated[str, Field(max_length=MAX_REASON, pattern=PLAIN_TEXT)]
PEER_ID = "Qm[0-9A-Za-z]{44}|12D3Koo[0-9A-Za-z]{45}"
"""How a peer's id is written."""
PeerId = Annotated[str, Field(max_length=128, pattern=r"^[0-9A-Za-z]*$")]
Base64 = Annotated[str, Field(max_length=1280, pattern=r"^[A-Za-z0-9+/=]*$")]


class Record(BaseModel):
    """A record: immutable, unknown keys rejected, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Any) -> Self:
        """Validate plain values; raises ValueError with the field that is wrong."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"{cls.__name__}: {describe(error, cls)}") from None


class SignedRecord(Record):
    """A record that its author signs.

    The signature covers `wire`: a record signed under one name is not valid under another. Renaming the class changes
    no byte.
    """

    wire: ClassVar[str]
    """The record's name on the network: unique, short and never changed."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if hasattr(cls, "wire") and "wire" not in vars(cls):
            raise TypeError(f"{cls.__name__} must declare a wire name of its own; '{cls.wire}' is its base class's")


MAX_ACCUSED = 8
Accused = Annotated[tuple[PeerId, ...], Field(max_length=MAX_ACCUSED, strict=False)]
