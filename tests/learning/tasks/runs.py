"""Small runs of all tasks, on data of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dedloc_kit.config.run import RunConfig
from tests.learning.tasks import swav_run, text_to_image_run
from tests.pictures import striped
from tests.text_runs import MODEL, text_run, write_text

TASKS = ("albert", "causal", "encoder", "swav", "text-to-image")
ALBERT = {**MODEL, "embedding_size": 16, "max_position_embeddings": 64}


def run_maker(folder: Path) -> Callable[..., RunConfig]:
    """What makes a run of any task on data in this folder, with other options."""
    write_text(folder)
    text_to_image_run.write_codes(folder)
    (folder / "striped").mkdir()
    striped(folder / "striped", 40)
    striped(folder / "striped", 40, "test")

    def made(name: str, **options: Any) -> RunConfig:
        if name == "swav":
            run = swav_run.run_of(folder / "striped", **{"queue_length": 0, **options})
            return run.model_copy(update={"microbatch": 8})
        if name == "text-to-image":
            return text_to_image_run.run_of(folder, **options)
        if name == "albert":
            options["model"] = {**ALBERT, **options.get("model", {})}
            return text_run(folder, name, **options)
        return text_run(folder, name, **options)

    return made
