"""What `dedloc check` has predicted of a run, kept so that the live page can say how the run stands against it."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dedloc_kit.errors import UserError
from dedloc_kit.machine.text_files import replace_text

PLAN_FILE = "plan.json"
_MAX_BYTES = 100_000
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Plan(BaseModel):
    """A prediction for one run and one mix of volunteers."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run_id: Annotated[str, Field(max_length=100)]
    volunteers: Annotated[str, Field(max_length=500)]
    """The mix of volunteers, as `dedloc check --volunteers` takes it."""
    volunteer_count: Annotated[int, Field(ge=1)]
    step_seconds: Finite
    """Seconds of a global step."""
    days: Finite
    """Days until the last global step."""
    kilowatt_hours: Finite
    """Electricity of all volunteers until then."""
    sent_bytes: Finite
    """Bytes that a volunteer sends in a global step, if others cannot reach it."""
    received_bytes: Finite
    """Bytes that it receives in a global step."""
    loss: tuple[Finite, Finite] | None = None
    """Lowest and highest training loss to expect at the end; none where no scaling law is known."""


def write_plan(plan: Plan, folder: Path) -> Path:
    """Write a plan into a folder; raises UserError if that is not possible."""
    path = folder / PLAN_FILE
    try:
        replace_text(path, plan.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); the plan is shown here only") from None
    return path


def read_plan(folder: Path, run_id: str) -> Plan | None:
    """The plan for this run in a folder; none if there is none, or only one for another run or of another version."""
    try:
        with (folder / PLAN_FILE).open("rb") as file:
            plan = Plan.model_validate_json(file.read(_MAX_BYTES))
    except (OSError, ValidationError):
        return None
    return plan if plan.run_id == run_id else None
