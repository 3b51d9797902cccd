"""What a swarm begins with that serves a model: which model that is, and the configuration that follows."""

import re
import shutil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dedloc_kit.blocks.served import ServedModel, read_model
from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.pretrained import with_tensors
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.state.checkpoint import find
from dedloc_kit.machine.home import known_copies
from dedloc_kit.machine.private import make_private
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.records.record import Record
from dedloc_kit.run.places import with_copies
from dedloc_kit.run.trust import AccessConfig
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
    """Of a run's folder the model in its newest checkpoint, which is written into this peer's folder; else as it is."""
    folder = Path(where)
    if not ((folder / INVITATION_FILE).is_file() and (folder / "checkpoints").is_dir()):
        return where
    invitation = Invitation.parse((folder / INVITATION_FILE).read_text(encoding="utf-8"))
    run = invitation.run_config()
    run = with_copies(run, known_copies(run.run_id, invitation.organizer) | peer.data)
    tensors, info = find(folder)
    model = peer.folder / f"model-{run.run_id}-{info.step}"
    if not model.is_dir():
        task = create_task(run, peer.task_module)
        unfinished = model.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        if task.export(with_tensors(task, run, tensors, folder), unfinished, run.name) is None:
            raise UserError(f"the task '{run.task.name}' trains no language model of transformers; serve one that does")
        unfinished.rename(model)
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
