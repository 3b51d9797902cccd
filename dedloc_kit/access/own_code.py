"""What lets a volunteer into a run that is not open to all: found where secrets are kept, or asked for."""

from contextlib import suppress
from getpass import getpass
from pathlib import Path

from dedloc_kit.client import fetch_invitation
from dedloc_kit.errors import UserError
from dedloc_kit.machine.account import CODE, given_code, kept_code
from dedloc_kit.machine.hidden_characters import check_pasted
from dedloc_kit.machine.paths import expanded
from dedloc_kit.machine.text_files import read_text
from dedloc_kit.serving.config import swarm_of

_QUESTIONS = {
    "invite": "Your personal code (just Enter if this machine was let in before): ",
    "hub": "A read-only token of your Hugging Face account (just Enter if this machine was let in before): ",
}


def personal_code(where: str, *, file: Path | None = None, ask: bool) -> str:
    """The code for the run of this invitation; empty if it needs none, or if there is nobody to ask.

    On Colab call it in the main thread. Raises UserError if the file cannot be read, or if what is there cannot be a
    code.

    :param file: holds it; otherwise the environment or the notebook's secrets may
    :param ask: whether somebody is there who can type it; nobody sees what is typed
    """
    if file is not None:
        try:
            code = read_text(expanded(file)).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read ({error}); it should hold your personal code") from None
        check_pasted(f"the code in {file}", "".join(code.split()))  # a long one may be broken into lines
        return code
    question = None
    if not (found := given_code()):
        with suppress(UserError):  # the session says so, or knows the run from the last time
            question = _QUESTIONS.get(who := swarm_of(fetch_invitation(where, watch=True)).access.who)
            if who == "open":
                return ""  # and a notebook's owner is not asked for a secret, which takes long unanswered
        found = kept_code()
    check_pasted(f"the code in {CODE}", found)
    if found or not ask or question is None:
        return found
    try:
        typed = getpass(question).strip()
    except Exception:  # EOFError, or that of a notebook which cannot ask
        return ""
    check_pasted("the code", typed)
    return typed
