"""Why a peer is not let into a run: one word for the coordinator, a sentence with what to do for the volunteer."""

from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.admission import Denial

_DENIALS: dict[Denial, str] = {
    "no code": (
        f"this run is by invitation: ask the organizer for your personal code, and give it when asked or as {CODE}"
    ),
    "no token": (
        "this run admits accounts of the Hugging Face Hub: make a token of the kind 'Read' at "
        f"huggingface.co/settings/tokens and give it when asked or as {CODE}; it is looked at once and not kept"
    ),
    "unreadable": "this is not a code: it may not be all of it; copy it again, from beginning to end",
    "forged": "this code is not one of this run's organizer; copy it again, or ask for a new one",
    "expired": "your invitation has expired; ask the organizer for a new code",
    "revoked": "the organizer has withdrawn your invitation; ask them if you think that this is a mistake",
    "other run": "this code is for another run; ask the organizer for one for this run",
    "kicked": "the organizer has sent this machine away; ask them if you think that this is a mistake",
    "not listed": "your account on the Hub is not among those that may join; ask the organizer to add it",
    "token refused": "the Hub refuses your token; make a new one of the kind 'Read' at huggingface.co/settings/tokens",
    "hub down": "the Hub does not tell the coordinator now whose token this is; try again in some minutes",
    "too many machines": (
        "as many machines as your invitation is for take part already; stop one and try again in an hour, or ask the "
        "organizer for more"
    ),
    "busy": "the coordinator is looking at many newcomers; try again in a minute",
}
_FOUND_OUT = (
    "the organizer has sent this machine away after its work was checked: {why}; ask them if you think that this is a "
    "mistake"
)


class Denied(Exception):
    """A peer is not let in; for the coordinator's own use."""

    def __init__(self, denial: Denial, why: str = "") -> None:
        super().__init__(denial)
        self.denial: Denial = denial
        self.why = why


def explained(denial: Denial, why: str = "") -> UserError:
    """What a denial means to a volunteer.

    :param why: what was found about one that is kicked
    """
    passing = denial in ("hub down", "busy")
    text = _FOUND_OUT.format(why=why) if why else _DENIALS[denial]
    return UserError(text) if passing else NotWelcome(text)
