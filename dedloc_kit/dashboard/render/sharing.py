"""What the head of the page tells other programs: the feed, and Open Graph (<https://ogp.me>) where it is shared."""

from html import escape

from dedloc_kit.dashboard.render.card import CARD_HEIGHT, CARD_WIDTH
from dedloc_kit.dashboard.schemas import RunState
from dedloc_kit.dashboard.serving.schemas import ServingState
from dedloc_kit.display.human import count


def sharing_tags(state: RunState, address: str) -> str:
    """The elements for the head of the page.

    :param address: of the page as the reader reached it: behind a tunnel we know no other
    """
    people = count(state.contributor_count, "volunteer")
    done = f"Global step {state.step:,} of {state.total_steps:,}, by {people} so far."
    values = {
        "og:type": "website",
        "og:site_name": "dedloc",
        "og:title": state.name,
        "og:description": f"A model that volunteers train together over the Internet. {done}",
        "og:url": address,
        "og:image": f"{address}card.png",
        "og:image:width": str(CARD_WIDTH),
        "og:image:height": str(CARD_HEIGHT),
        "og:image:alt": f"The run {state.name} and its loss",
        "twitter:card": "summary_large_image",
    }
    feed = f'<link rel="alternate" type="application/atom+xml" href="{escape(address)}feed.atom">'
    return f"{_elements(values)}\n  {feed}"


def serving_tags(state: ServingState, address: str) -> str:
    """The same for a swarm that serves a model."""
    values = {
        "og:type": "website",
        "og:site_name": "dedloc",
        "og:title": state.name,
        "og:description": f"{state.model}, served by {count(state.server_count, 'volunteer')} layer by layer.",
        "og:url": address,
    }
    return _elements(values)


def _elements(values: dict[str, str]) -> str:
    return "\n  ".join(f'<meta property="{key}" content="{escape(value)}">' for key, value in values.items())
