"""dedloc_kit: a community trains one model together over the Internet.

Importing the package is cheap: neither torch nor hivemind is loaded until a role starts.
"""

from __future__ import annotations

from dedloc_kit.version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dedloc_kit.notebook.chat import Conversation
    from dedloc_kit.notebook.taking_part import Participation


def join(
    invitation: str,
    *,
    name: str | None = None,
    team: str | None = None,
    devices: str = "auto",
    folder: str | Path | None = None,
    task_module: str | None = None,
    data: Mapping[str, str | Path] | None = None,
    drive_only: bool = False,
    host_experts: bool = False,
    compile: bool = False,
    code: str | None = None,
    block: bool | None = None,
    device: str | None = None,
) -> Participation | None:
    """Let this machine take part in a run, and show how it goes.

    In Jupyter the cell returns, and the panel's buttons pause and leave; on Colab, whose buttons are dead while
    something else goes on, the cell runs until its stop button leaves, and where nobody sits before the notebook, as
    with `nbconvert --execute`, until the run is over. In a script or terminal it shows a compact view and Ctrl-C
    leaves.

    :param invitation: a coordinator's URL (`http://...`), a Hub repository (`OWNER/NAME`) or an invitation's file
    :param name: shown on the dashboard; without one the name of your Hub account, if you are logged in, else anonymous
    :param team: shown beside it; what you give counts for the team too
    :param devices: what to train on: `auto` (all GPUs, else the processor), `cpu`, or names such as `cuda:0,cuda:1`
    :param folder: keeps your identity, so that what you give adds up; by default one in your home folder
    :param task_module: a Python module on this machine that has the run's task, if dedloc_kit itself has not
    :param data: your copies of the run's data or tokenizer, by the last part of their names, such as
        `{"corpus": "/content/drive/MyDrive/corpus"}`; nothing else of this machine is read, whatever the run names
    :param drive_only: of a model that is cut into stages hold none, and send batches of data through those of others:
        for a machine with little memory
    :param host_experts: of a model with experts hold some of them for all, too, in up to half of the free memory
    :param compile: whether to compile the model's layers for the device, which takes a minute or more; they stay as
        they are if that fails or is not faster
    :param code: what lets you into a run that is not open to all: the personal code that the organizer gave you, or a
        read-only token of the Hub, as the run wants it. Better keep it as the secret `DEDLOC_CODE` on Colab or Kaggle,
        or in the environment; without any the call asks for it
    :param block: whether the call waits until the session ends; by default as described above
    :param device: the same as `devices`, which had this name
    """
    from dedloc_kit.notebook.join import join

    return join(
        invitation,
        name=name,
        team=team,
        devices=device or devices,
        folder=folder,
        task_module=task_module,
        data=data,
        drive_only=drive_only,
        host_experts=host_experts,
        compile=compile,
        code=code,
        block=block,
    )


def lend(
    invitation: str,
    *,
    name: str | None = None,
    folder: str | Path | None = None,
    give_state: bool = False,
    code: str | None = None,
    block: bool | None = None,
) -> Participation | None:
    """Let this machine lend its line to a run, and show how it goes: it averages for others, without a GPU.

    Others have to reach it, so it helps on a server, seldom at home and never on Colab. All else is as for `join`.

    :param give_state: hold the training state as well, and give it to newcomers: that takes many times the memory
    """
    from dedloc_kit.notebook.join import join

    return join(invitation, name=name, folder=folder, code=code, block=block, lends=True, gives_state=give_state)


def chat(
    where: str, *, code: str | None = None, folder: str | Path | None = None, length: int = 2048
) -> Conversation | None:
    """Talk with a model on this machine, or with one that its community serves, whose servers see what is typed.

    In Jupyter the cell returns, and the panel takes messages. On Colab, whose buttons are dead while something else
    goes on, the cell asks for one message after the other: its stop button stops an answer, an empty line ends the
    chat. In a script or terminal it is what `dedloc chat` is.

    :param where: a folder that transformers loads, a run's folder (its best checkpoint), a model `OWNER/NAME` on the
        Hub, or an invitation: a page's URL (`http://...`), a repository on the Hub without a model, or a file
    :param code: what lets you in if a served model is not open to all; as for `join`
    :param folder: keeps your identity and the parts of a served model that this machine needs; by default in your home
    :param length: tokens that the model sees at once
    """
    from dedloc_kit.notebook.chat import chat

    return chat(where, code=code, folder=folder, length=length)


def serve(
    invitation: str,
    *,
    name: str | None = None,
    team: str | None = None,
    weights: str = "bfloat16",
    blocks: int | None = None,
    folder: str | Path | None = None,
    code: str | None = None,
    block: bool | None = None,
) -> Participation | None:
    """Let this machine hold some layers of a model that its community serves, and show how it goes.

    In Jupyter the cell returns, and the panel's buttons pause and leave; on Colab the cell runs until its stop button
    leaves. In a script or terminal it shows a compact view and Ctrl-C leaves.

    :param invitation: the page's URL (`http://...`) or an invitation's file
    :param name: shown on the page; without one the name of your Hub account, if you are logged in, else anonymous
    :param team: shown beside it
    :param weights: how they are held: `float32`, `bfloat16`, `int8` or `int4`, less exact from left to right
    :param blocks: layers that this machine holds; without it as many as fit into its memory
    :param folder: keeps your identity and what was fetched; by default one in your home folder
    :param code: what lets you into a swarm that is not open to all
    :param block: whether the call waits until the session ends; by default as described above
    """
    from dedloc_kit.notebook.serve import serve

    return serve(
        invitation,
        name=name,
        team=team,
        weights=weights,
        blocks=blocks,
        folder=folder,
        code=code,
        block=block,
    )
