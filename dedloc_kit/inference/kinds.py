"""What a person names to chat with: a model for this machine, or the invitation to one that is served."""

from typing import Literal

from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, model_files, repository_and_revision
from dedloc_kit.machine.paths import exists, expanded
from dedloc_kit.pretrained import CONFIG

Kind = Literal["local", "served"]
_OF_MODELS = {".safetensors", ".gguf", ".toml", ".bin", ".pt"}
"""Files that are no invitation."""


def kind_of(where: str) -> Kind:
    """Of a folder, a file, an address, or `OWNER/NAME`: a repository with a model is a model, also if an invitation
    lies there too. Raises UserError if there is no such thing."""
    path = expanded(where)
    if exists(path):
        return "local" if path.is_dir() or path.suffix in _OF_MODELS else "served"
    if where.startswith(("http://", "https://")):
        return "served"
    if (named := repository_and_revision(where)) is None:
        raise UserError(
            f"{where:.300} does not exist; name the folder of a model or a run, OWNER/NAME of the Hub, or an invitation"
        )
    repository, revision = named
    try:
        files = model_files(repository, revision, [CONFIG])
    except HubUnavailable as error:
        raise UserError(f"{repository} cannot be read now ({error}); check the connection and try again") from None
    return "local" if revision is not None or (files / CONFIG).is_file() else "served"
