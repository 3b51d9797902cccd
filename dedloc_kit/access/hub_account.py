"""Whose a token of the Hugging Face Hub is: asked of the Hub, and the token kept nowhere."""

import json
import re
from typing import Any

from dedloc_kit.access.denials import Denied

HUB_PATIENCE = 10.0
"""Seconds."""
MAX_BYTES = 1_000_000
_TOKEN = re.compile(r"hf_[A-Za-z0-9_.-]{1,500}")


def may_be_token(text: str) -> bool:
    """Does it have the form of a token? Then it is worth a question to the Hub."""
    return _TOKEN.fullmatch(text) is not None


def whose_token(token: str) -> tuple[str, frozenset[str], bool]:
    """The account of a token of the Hub, its organizations, and whether the token can only read.

    Raises Denied if the Hub refuses the token or does not answer.
    """
    import requests
    from huggingface_hub import constants

    from dedloc_kit.machine.answers import PLAIN, body

    try:
        with requests.get(
            f"{constants.ENDPOINT}/api/whoami-v2",
            headers={"Authorization": f"Bearer {token}", **PLAIN},
            timeout=HUB_PATIENCE,
            allow_redirects=False,
            stream=True,
        ) as answer:
            content = body(answer, MAX_BYTES)
    except ValueError:  # what cannot be in a header is no token
        raise Denied("token refused") from None
    except requests.RequestException:
        raise Denied("hub down") from None
    if answer.status_code in (401, 403):
        raise Denied("token refused")
    try:
        told: dict[str, Any] = json.loads(content)
        organizations = frozenset(str(organization["name"]) for organization in told.get("orgs", ()))
        return str(told["name"]), organizations, _reads_only(told)
    except (ValueError, LookupError, TypeError):
        raise Denied("hub down") from None


def _reads_only(told: dict[str, Any]) -> bool:
    token = told["auth"]["accessToken"]
    if token["role"] != "fineGrained":
        return bool(token["role"] == "read")
    scoped = token["fineGrained"]
    permissions = [*scoped.get("global", ()), *(p for scope in scoped.get("scoped", ()) for p in scope["permissions"])]
    return all(str(permission).endswith(".read") for permission in permissions)
