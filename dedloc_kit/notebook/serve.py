"""`serve`: this machine holds some layers of a served model."""

from pathlib import Path
from typing import Any

from dedloc_kit.notebook.keywords import keywords_of
from dedloc_kit.notebook.launcher import Participation, take_part
from dedloc_kit.serving.config import ServerConfig
from dedloc_kit.session.serving_session import ServingSession


@keywords_of(ServerConfig)
def serve(
    invitation: str,
    *,
    folder: str | Path | None = None,
    code: str | None = None,
    block: bool | None = None,
    **options: Any,
) -> Participation | None:
    """Let this machine hold some layers of a model that its community serves, and show how it goes.

        from dedloc_kit import serve

        serve("http://HOST:8000", name="Asha")

    In Jupyter the cell returns, and the panel's buttons pause and leave; on Colab the cell runs until its stop button
    leaves. In a script or terminal it shows a compact view and Ctrl-C leaves.

    :param invitation: the page's URL (`http://...`) or an invitation's file
    :param folder: keeps your identity and what was fetched; by default one in your home folder
    :param code: what lets you into a swarm that is not open to all; as for `join`
    :param block: whether the call waits until the session ends; by default as described above
    """
    return take_part(ServingSession, ServerConfig, invitation, options, folder=folder, code=code, block=block)
