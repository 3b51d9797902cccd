"""`join`: this machine trains in a run."""

from pathlib import Path
from typing import Any

from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.notebook.keywords import keywords_of
from dedloc_kit.notebook.launcher import Participation, take_part
from dedloc_kit.session.training_session import TrainingSession


@keywords_of(JoinOptions)
def join(
    invitation: str,
    *,
    folder: str | Path | None = None,
    code: str | None = None,
    block: bool | None = None,
    **options: Any,
) -> Participation | None:
    """Let this machine take part in a run, and show how it goes.

        from dedloc_kit import join

        join("http://HOST:8000", name="Asha")

    In Jupyter the cell returns, and the panel's buttons pause and leave. On Colab, whose buttons are dead while a cell
    runs, the cell runs until its stop button leaves; where nobody sits before the notebook, as with `nbconvert
    --execute`, until the run is over. In a script or terminal it shows a compact view and Ctrl-C leaves.

    :param invitation: a coordinator's URL (`http://...`), a Hub repository (`OWNER/NAME`) or an invitation's file
    :param folder: keeps your identity, so that what you give adds up; by default one in your home folder
    :param code: what lets you into a run that is not open to all: the personal code that the organizer gave you, or a
        read-only token of the Hub, as the run wants it. Better keep it as the secret `DEDLOC_CODE` on Colab or Kaggle,
        or in the environment; without any the call asks for it
    :param block: whether the call waits until the session ends; by default as described above
    """
    return take_part(TrainingSession, JoinOptions, invitation, options, folder=folder, code=code, block=block)
