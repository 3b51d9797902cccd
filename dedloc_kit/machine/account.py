"""Who the volunteer is: the name that others see, and the Hub token of this machine, which nobody ever sees."""

import logging
import os
import unicodedata
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedloc_kit.machine.hidden_characters import why_no_token
from dedloc_kit.machine.hosted import hosted

ANONYMOUS = "anonymous"
MAX_CHARACTERS = 64
ASKING_SECONDS = 10.0
CODE = "DEDLOC_CODE"
"""The environment variable, and the secret on Colab and Kaggle, that holds a volunteer's personal code."""
_SECRET = "HF_TOKEN"
_REMEMBERED = "hub-name"
_NO_TOKEN = {_SECRET: "", "HUGGING_FACE_HUB_TOKEN": "", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
"""Environment in which huggingface_hub looks for no token."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Account:
    """A name and, if there is one that works, the token for a volunteer's downloads."""

    name: str
    anonymous: bool
    token: str | None = field(default=None, repr=False)
    warning: str | None = None
    """What the volunteer may want to put right: one sentence."""

    def environment(self) -> Mapping[str, str]:
        """For the volunteer's process, and for no other: a secret in the notebook's own would reach every cell."""
        if self.token is not None:
            return {_SECRET: self.token}
        # The Hub answers nothing at all, not even what is public, to a token that it refuses.
        return _NO_TOKEN


_UNUSABLE = (
    "the Hugging Face token of this machine cannot be one, so it is not used: {why}; copy it again, whole, from "
    f"huggingface.co/settings/tokens and keep it as {_SECRET}, or remove it"
)


def token() -> str | None:
    """The Hub token of this machine: from the environment, Colab's or Kaggle's secrets, or what `hf auth login` keeps.

    On Colab call it in the main thread: the notebook may ask its owner whether it may read the secret.
    """
    from huggingface_hub import get_token  # it looks into Colab's secrets as well

    with warnings.catch_warnings(), suppress(Exception):  # a secret that may not be read is no token
        warnings.simplefilter("ignore")
        found = get_token()
        if found:
            return found
    return _of_kaggle(_SECRET) if hosted() == "kaggle" else None


def leave_no_token() -> None:
    """Ask the Hub without a token from now on, in this process and those that it starts, if the one that is here cannot
    be one: it fits into no request, and what is public needs none."""
    from huggingface_hub import constants, get_token

    found = None
    with warnings.catch_warnings(), suppress(Exception):  # as in `token`
        warnings.simplefilter("ignore")
        found = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if not found or not (why := why_no_token(found)):
        return
    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True
    os.environ.update(_NO_TOKEN)
    _log.warning(_UNUSABLE.format(why=why))


def given_code() -> str:
    """The personal code in the environment."""
    return os.environ.get(CODE, "").strip()


def kept_code() -> str:
    """The personal code that this machine keeps for a run that is not open to all: from the environment, or Colab's or
    Kaggle's secrets; empty if there is none. On Colab call it in the main thread, as `token`: it may take long."""
    code = given_code()
    if not code and hosted() == "colab":
        with suppress(Exception):  # no such secret, or the notebook may not read it
            from google.colab import userdata  # type: ignore[import-untyped]

            code = str(userdata.get(CODE)).strip()
    if not code and hosted() == "kaggle":
        code = _of_kaggle(CODE) or ""
    return code


def _of_kaggle(secret: str) -> str | None:
    with suppress(Exception):  # no such secret, not attached to this notebook, or no network
        from kaggle_secrets import UserSecretsClient

        return str(UserSecretsClient().get_secret(secret)).strip() or None
    return None


def who_am_i(chosen: str | None, folder: Path) -> Account:
    """The chosen name, else the one that the token has on the Hub, else anonymous.

    While the Hub does not answer, the name that it gave the last time counts; the volunteer's folder remembers it.
    """
    found = token()
    warning = None
    if found and (why := why_no_token(found)):
        found, warning = None, _UNUSABLE.format(why=why)
    name, refused = _hub_name(found) if found else (None, False)
    if refused:
        found = None
        warning = (
            "the Hugging Face Hub refuses the token of this machine, so it is not used; make a new one at "
            f"huggingface.co/settings/tokens and keep it as {_SECRET}, or remove the old one"
        )
    if name:
        with suppress(OSError):  # what cannot be remembered is asked again
            (folder / _REMEMBERED).write_text(name, encoding="utf-8")
    elif found:
        with suppress(OSError, UnicodeDecodeError):
            name = cleaned((folder / _REMEMBERED).read_text(encoding="utf-8"))
    name = cleaned(chosen or "") or name
    return Account(name or ANONYMOUS, anonymous=not name, token=found, warning=warning)


def cleaned(name: str) -> str:
    """A name as others may see it: one line without control characters, at most 64 characters."""
    # Not `isprintable`: Indic names are written with joiners, which it leaves out.
    plain = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in name)
    return " ".join(plain.split())[:MAX_CHARACTERS].strip()


def _hub_name(token: str) -> tuple[str | None, bool]:
    """The name that the Hub knows this token by, if it answers, and whether it refuses the token."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    session = get_session()
    before, session.timeout = session.timeout, ASKING_SECONDS
    try:
        answer: Any = HfApi().whoami(token=token)
        return cleaned(str(answer["name"])) or None, False
    except HfHubHTTPError as error:
        return None, error.response.status_code == 401
    except Exception:  # connections fail with exceptions of several libraries and versions
        return None, False
    finally:
        session.timeout = before
