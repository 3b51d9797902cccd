"""What the API of a serving swarm answers. What servers say of themselves is as they say it."""

from typing import Literal

from dedloc_kit.dashboard.schemas import Answer

Status = Literal["starting", "serving", "incomplete", "lost"]


class Server(Answer):
    """A server, as it says itself."""

    peer: str
    name: str
    team: str
    """Empty for who belongs to none."""
    device: str
    begin: int
    end: int
    """It holds the layers from `begin` up to before `end`."""
    form: str
    """In which it holds the weights."""
    current: bool
    """It serves the version of this swarm."""
    state: str
    """`joining`: it loads its layers; `moving`: it takes no new sessions and will serve others; `leaving`."""
    decoding: float
    """Tokens a second through all its layers, one by one; 0 before it is measured."""
    prompts: float
    """The same of a prompt."""
    cache_tokens: int
    free_tokens: int
    sessions: int
    served: int
    """Tokens times layers since it came."""
    reachable: bool
    """Others can connect to it; else it makes outgoing connections only."""
    since: float
    """When this page first saw it hold these layers, in seconds since 1970."""


class Stretch(Answer):
    """Layers from `begin` up to before `end` that the same servers serve."""

    begin: int
    end: int
    servers: int
    speed: float
    """Tokens a second that each of these layers passes."""


class ServedPoint(Answer):
    time: float
    tokens: float
    """Through all layers, in a second, over half a minute before that."""


class ServingState(Answer):
    """How a model is served."""

    run_id: str
    name: str
    about: str
    access: Literal["open", "invite", "hub"]
    """Who may take part: all, whoever has a personal code, or accounts of the Hugging Face Hub."""
    model: str
    """`OWNER/NAME@COMMIT` of the Hub, or a name for people."""
    version: str
    """The digest of the manifest, which names every tensor by its hash."""
    layers: int
    """Of the model; 0 before that is known."""
    status: Status
    """`serving` while each layer has a server, `incomplete` while one has none; `lost`: nothing was heard of late."""
    message: str
    """What whoever began the swarm does, in words; empty once it serves."""
    refusal: Literal["starting", "over", "full"] | None = None
    """Why nobody can join now."""
    organizer: str | None = None
    """The peer id of whoever began the swarm."""
    wheel: str | None = None
    """The file of the kit to install, below `/wheel/`, with its digest; null if it is not to be had here."""
    stretches: list[Stretch]
    """All layers, first layer first."""
    bare_layers: int
    """That nobody serves."""
    single_layers: int
    """That one server serves."""
    speed: float
    """Tokens a second that the worst-served layer passes."""
    sessions: int
    """Of all servers: an answer has one on each server on its way."""
    cache_tokens: int
    free_tokens: int
    """Of all servers."""
    served: int
    """Tokens times layers since this page began."""
    tokens_per_second: float
    """In the last half minute, through all layers."""
    servers: list[Server]
    """First layers first, no more than 200."""
    server_count: int
    refused: dict[str, int]
    """Requests that were wrong and were refused by whoever serves this page, by kind."""
    history: list[ServedPoint]
    """Of the last hour, oldest first."""
