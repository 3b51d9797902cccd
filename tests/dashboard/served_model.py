"""A model that is served, for tests of what its page makes of it."""

from typing import Any

from dedloc_kit.events import Served, ServerSeen
from dedloc_kit.serving.config import ServingConfig, parse_serving
from tests.dashboard.runs import HOSTILE_NAMES

LAYERS = 30
SERVING: ServingConfig = parse_serving(
    {
        "name": "tiny",
        "about": "A small model <b>for tests</b>.",
        "model": "owner/tiny@" + "a" * 40,
        "config": {"model_type": "llama", "num_hidden_layers": LAYERS},
        "manifest": "ab" * 32,
    }
)


def server(number: int, begin: int = 0, end: int = LAYERS, **values: Any) -> ServerSeen:
    told: dict[str, Any] = {
        "peer": f"Qm{number}",
        "name": HOSTILE_NAMES[number % len(HOSTILE_NAMES)],
        "team": HOSTILE_NAMES[-1 - number % len(HOSTILE_NAMES)],
        "device": "NVIDIA T4",
        "begin": begin,
        "end": end,
        "form": "bfloat16",
        "version": SERVING.manifest,
        "state": "online",
        "decoding": 10.0,
        "prompts": 200.0,
        "passes": 50.0,
        "cache_tokens": 8000,
        "free_tokens": 6000,
        "sessions": 2,
        "served": 100,
        "client_mode": False,
    }
    return ServerSeen(**(told | values))


def served(*servers: ServerSeen, **values: Any) -> Served:
    return Served(layers=LAYERS, mine=servers[0] if servers else None, servers=servers, **values)


GAP = served(
    server(0, 0, 12),
    server(1, 0, 12, client_mode=True),
    server(2, 8, 20, decoding=6.0),
    server(3, 20, 22),
    server(4, 26, 30, state="moving"),
    server(5, 22, 26, state="joining"),
    server(6, 22, 26, version="cd" * 32),
    *(server(number, 12, 20) for number in (7, 8, 9)),
    refused={"<b>a push</b>": 3},
)
"""Nobody serves 22 to 25, one server alone 20 to 21 and 26 to 29."""
WHOLE = served(server(0), server(1, decoding=5.0))
