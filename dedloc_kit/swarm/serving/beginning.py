"""What a swarm begins with that serves a model: which model that is, and the configuration that follows."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dedloc_kit.blocks.served import ServedModel, read_model
from dedloc_kit.config.trust import AccessConfig
from dedloc_kit.errors import UserError
from dedloc_kit.export.folder import Place, write_trained
from dedloc_kit.export.placing import placed
from dedloc_kit.export.source import Exported, Trained, find, is_run
from dedloc_kit.machine.private import make_private
from dedloc_kit.records.record import Record
from dedloc_kit.serving.config import MODEL_ON_HUB, ServerConfig, ServingConfig, parse_serving


class Beginning(Record):
    """What is to be served by a swarm that begins."""

    model: Annotated[str, Field(min_length=1)]
    """A folder with a model, or of a run that trains one, or `OWNER/NAME@COMMIT` of the Hub."""
    name: str
    about: str = ""
    who: Literal["open", "invite"] = "open"


def begun(job: Beginning, peer: ServerConfig) -> tuple[ServingConfig, ServedModel]:
    """Read the model that is to be served; raises UserError."""
    try:
        make_private(peer.folder)
    except OSError as error:
        raise UserError(f"{peer.folder} cannot be written ({error.strerror}); choose another with --folder") from None
    served = read_model(_model_of(job.model, peer), peer.folder)
    return _configuration(job, served), served


def _model_of(where: str, peer: ServerConfig) -> str:
    """Of a run's folder the model in its best checkpoint, which is written into this peer's folder; else as it is."""
    if not is_run(Path(where)) or not isinstance(source := find(where, data=peer.data), Trained):
        return where
    model = peer.folder / f"model-{source.run.run_id}-{source.step}"
    written = Exported.of(model)
    if written is None or not written.is_of(source.tensors.info):
        with placed(model, source.tensors.info) as folder:
            write_trained(folder, source, Place(source.name), peer.task_module)
    return str(model)


def _configuration(job: Beginning, served: ServedModel) -> ServingConfig:
    values = {
        "name": job.name,
        "about": job.about,
        "access": AccessConfig(who=job.who).model_dump(mode="json"),
        "model": job.model if re.fullmatch(MODEL_ON_HUB, job.model) else served.folder.resolve().name,
        "config": served.config,
        "manifest": served.manifest.digest,
        "files": dict(served.files),
    }
    return parse_serving(values)
