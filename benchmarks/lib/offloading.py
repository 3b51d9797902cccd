"""The same model on one machine that reads its layers from the disk for each token: accelerate's `disk_offload`.

Run as a module, with accelerate in the search path, it prints the seconds of each token as JSON: with the disk as it is
once the files' pages are dropped ("free"), and with reads held to 200 MB/s ("held"), as a cheap disk has them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.lib.smollm2 import PACKAGES, model_folder
from dedloc_kit.errors import UserError

BYTES_PER_SECOND = 200e6
TOKENS = 3
_PROMPT = 16


def offloaded_seconds() -> dict[str, list[float]]:
    """For each token but the first, by `free` and `held`. Raises UserError if accelerate is not there."""
    if not (PACKAGES / "accelerate").is_dir():
        raise UserError("accelerate is not here; make smollm2 brings it")
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(PACKAGES)])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lib.offloading"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


def main() -> int:
    import torch
    from accelerate import disk_offload  # type: ignore[import-untyped, unused-ignore]
    from accelerate.utils import OffloadedWeightsLoader  # type: ignore[import-untyped, unused-ignore]
    from transformers import AutoModelForCausalLM

    read, held = OffloadedWeightsLoader.__getitem__, False

    def slowly(loader: Any, key: str) -> Any:
        began = time.monotonic()
        found = torch.as_tensor(read(loader, key)).clone()  # a map of the file is read when it is used
        if held:
            time.sleep(max(0.0, began + found.numel() * found.element_size() / BYTES_PER_SECOND - time.monotonic()))
        return found

    OffloadedWeightsLoader.__getitem__ = slowly
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
    took = {}
    with tempfile.TemporaryDirectory(prefix="dedloc-offloaded-") as folder:
        disk_offload(model, folder)
        os.sync()  # only pages that are written can be dropped
        for name in ("free", "held"):
            held, times = name == "held", list[float]()

            def one_more(ids: Any, scores: Any, times: list[float] = times, **_: Any) -> Any:
                times.append(time.monotonic())
                for path in Path(folder).iterdir():
                    with path.open("rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                return torch.zeros(len(ids), dtype=torch.bool)

            text = torch.arange(100, 100 + _PROMPT)[None]
            how = {"max_new_tokens": TOKENS + 1, "min_new_tokens": TOKENS + 1, "do_sample": False}
            with torch.no_grad():
                model.generate(text, stopping_criteria=[one_more], **how)
            took[name] = [after - before for before, after in pairwise(times)]
    print(json.dumps(took))
    return 0


if __name__ == "__main__":
    sys.exit(main())
