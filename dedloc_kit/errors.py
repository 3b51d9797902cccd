"""The one exception that people are meant to read."""


class UserError(Exception):
    """Something the person at the keyboard can put right: one line, what is wrong and what to do.

    Commands print it and exit with code 2; it never reaches anyone as a traceback.
    """


class NotWelcome(UserError):
    """The organizer does not let this machine take part: trying again makes no sense before they say otherwise."""
