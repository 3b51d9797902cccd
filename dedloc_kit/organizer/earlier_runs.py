"""Earlier runs of the same name: whose file was edited begins another run, at step 0 and in a folder of its own."""

import re
from pathlib import Path

from dedloc_kit.config.run import RunConfig


def earlier_run(run: RunConfig, folder: Path) -> str:
    """One line about the newest run of this name beside a run that begins, if that has come somewhere; else empty.

    :param folder: the new run's
    """
    if _steps(folder):
        return ""
    name = run.run_id.rpartition("-")[0]
    beside = [path for path in folder.parent.glob(f"{name}-*") if path != folder]
    found = [path for path in beside if re.fullmatch(r"[0-9a-f]{16}", path.name.removeprefix(f"{name}-"))]
    dated = [(path.stat().st_mtime, steps, path) for path in found if (steps := _steps(path))]
    if not dated:
        return ""
    _, steps, path = max(dated)
    return (
        f"this run begins at step 0, for its file says something else than that of {path.name}, which is at step "
        f"{max(steps)}; to go on from there:  --resume {path}"
    )


def _steps(folder: Path) -> list[int]:
    """Those of its checkpoints."""
    names = [path.stem for path in (folder / "checkpoints").glob("step-*.safetensors")]
    return [int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdecimal()]
