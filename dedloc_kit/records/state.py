"""What goes with a training state."""

from typing import Annotated

from pydantic import Field

from dedloc_kit.records.record import Count, Digest, Record, RunId

STATE_FILE = "training_state.safetensors"
"""The training state in a run's Hub repository, beside the model for its users."""


class StateInfo(Record):
    """What accompanies the tensors that a newcomer downloads or a checkpoint holds."""

    run_id: RunId
    step: Count
    rounds: Annotated[tuple[Digest, ...], Field(max_length=64, strict=False)]  # not strict: a list will do
    """The latest all-reduces that led here, newest last: a peer in doubt learns whether its samples counted."""
