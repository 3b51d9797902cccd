"""A user of a served model on a host of its own: writes what it is asked for and tells when each token came."""

import json
import os
import sys
import time
from typing import Any

import torch

from dedloc_kit.inference.model import AutoDistributedModelForCausalLM


def main() -> int:
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def emit(kind: str, **values: Any) -> None:
        events.write(json.dumps({"event": kind, **values}) + "\n")

    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    model = AutoDistributedModelForCausalLM.from_pretrained(
        job["invitation"],
        folder=job["folder"],
        source=job["source"],
        activations=job["activations"],
        settings={"host": job["host"]},
    )
    emit("joined")
    for line in sys.stdin:
        asked = json.loads(line)
        text = torch.tensor([asked["text"]])
        times: list[float] = []
        with model.session(text.shape[1] + asked["new"] + 64) as past:

            def one_more(
                ids: torch.Tensor, scores: Any, times: list[float] = times, past: Any = past, **_: Any
            ) -> torch.Tensor:
                times.append(time.monotonic())
                if len(times) == 1:
                    emit("route", hops=past.through.route())
                emit("token", number=len(times))
                return torch.zeros(len(ids), dtype=torch.bool)

            began = time.monotonic()
            out = model.generate(
                text,
                max_new_tokens=asked["new"],
                min_new_tokens=asked["new"],
                do_sample=False,
                stopping_criteria=[one_more],
                **asked["how"],
            )
            ended = time.monotonic()
            recoveries = past.through.recoveries
        waits = [after - before for before, after in zip([began, *times], times, strict=False)]
        emit("answer", text=out[0, text.shape[1] :].tolist(), waits=waits, seconds=ended - began, recoveries=recoveries)
    model.network.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
