"""Reference figures of training: stored once, so that changed code is compared with them.

- For each run in `reference_runs.TASKS`: the loss and the gradients of a small batch.
- For the small form of each recipe: the loss of ten global steps, and a digest of each parameter after them.

All are in float32 on the CPU. The batches are stored with them, so the code that makes batches may change freely. The
weights are not those of a new model: they are drawn from the stored mean and deviation of each tensor, so the code that
initialises weights may change as well.

    python -m tests.learning.references --write [NAME ...]            # recompute all figures, or those of some names
    python -m tests.learning.references --write NAME --new-batches    # with new batches and new deviations

If a figure changes on purpose, check the new one against a plain loop first, in a test of its own. Then store it in the
commit that changes it.

Only this module calls code of the kit. A change of its interfaces needs changes here alone: `prepared` turns a stored
batch into one that the task takes, `Training` computes.
"""

import argparse
import json
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dedloc_kit.config.loading import load_run, parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.experts.calls import ExpertName, Microbatch, counting
from dedloc_kit.experts.mixture import connect
from dedloc_kit.learning.data.pictures.codes import Captioned
from dedloc_kit.learning.data.pictures.images import Encoded
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.state import SharedOptimizer, TrainingState
from dedloc_kit.records.steps import Receipt
from dedloc_kit.resources import recipe, recipes
from tests.learning import reference_runs as runs

FOLDER = Path(__file__).parent / "reference_data"
FIGURES = FOLDER / "figures.json"
STEPS = 10
SPREAD = 0.1
"""The standard deviation of all weights in `TASKS`. With the small weights of a new model attention is nearly uniform,
and a fault in it would hardly show."""
MAGNIFYING = ("swav",)
"""Recipes in which each step multiplies rounding errors by about three (ReLU, sharp assignments). Here each step starts
from the first parameters again; the state of the optimizer is kept."""

RECIPES = sorted(set(recipes()) - {"chat"})
"""Those that name all they begin with. The task `chat` computes as `causal` does; its own test has a plain loop."""

Weights = Mapping[str, Sequence[float]]
"""The mean and the standard deviation of each tensor."""


def run_of(name: str, tokenizers: Path) -> RunConfig:
    """The run of a task or a recipe, with a tokenizer of `reference_runs.write_tokenizers`."""
    if name in runs.TASKS:
        options = dict(runs.TASKS[name])
        if "tokenizer" in options:
            options["tokenizer"] = str(tokenizers / options["tokenizer"])
        sections = {"experts": runs.EXPERTS[name]} if name in runs.EXPERTS else {}
        nowhere = {"train": [{"dataset": "none/none"}]}
        exact = {"averaging": {"overlap": False}}
        return parse_run({"name": name, "global_batch": 64, "task": options, "data": nowhere, **exact, **sections})
    smoke = recipe(name) / "smoke.toml"
    small = load_run(recipe(name) / "run.toml", smoke if smoke.is_file() else None)
    if "tokenizer" not in small.task.options:
        return small
    tokenizer = tokenizers / ("causal" if small.task.name == "causal" else "masked")
    return small.model_copy(update={"task": small.task.model_copy(update={"tokenizer": str(tokenizer)})})


def new_batches(run: RunConfig, rows: int, count: int) -> list[Batch]:
    """Batches that the task makes of fixed data."""
    items: Iterator[Any] = runs.texts(zlib.crc32(run.name.encode()))
    options = run.task.options
    if run.task.name == "swav":
        items = (Encoded(number, data, None) for number, data in enumerate(runs.pictures(0, options["image_size"])))
    elif run.task.name == "text-to-image":
        tokenizer, drawn = BareTokenizer(options["tokenizer"]), options["pictures"]
        made = runs.captions(0, drawn["codes"], drawn["side"] ** 2)
        items = (Captioned(np.array(tokenizer.ids(text), np.uint16), codes) for text, codes in made)
    some = islice(items, 100 * rows * count)  # a block; nobody packs without end
    return list(islice(_task(run).batches_of(some, rows, 0), count))


def prepared(task: Any, batch: Batch) -> Batch:
    """Turn a stored batch into the form that `task.loss` takes."""
    made: Batch = task.prepare(batch)
    return made


class Training:
    """A run in one process: its model, the experts if there are some, and the global step of a peer."""

    def __init__(self, run: RunConfig) -> None:
        self.task = task = _task(run)
        stages = [task] if run.pipeline is None else [task.stage(number) for number in range(run.pipeline.count)]
        parts = [stage.model() for stage in stages]
        self.model: torch.nn.Module = parts[0] if run.pipeline is None else task.whole(parts)
        self._states = []
        for number, (stage, part) in enumerate(zip(stages, parts, strict=True)):
            groups = stage.groups(part)
            of_part = run if run.pipeline is None else run.of_stage(number)
            self._states.append(TrainingState(part, partial(_optimizer, run, groups), of_part))
        self._bank: Any = None
        self._experts: list[ExpertName] = []
        if run.experts is not None:
            self._bank, self._experts = Bank(run), names_of(run.experts)
            self._bank.hold_all()
            connect(self.model, self._bank)

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all parameters."""
        found = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        for expert in self._experts:
            kept = self._bank.state(expert)[0].items()
            found |= {f"expert {expert} {name}": each for name, each in kept if name.startswith("model.")}
        return found

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over parameters."""
        for name, own in self.model.named_parameters():
            own.copy_(tensors[name])
        for expert in self._experts:
            kept, step = self._bank.state(expert)
            self._bank.load(
                expert, {name: tensors.get(f"expert {expert} {name}", each) for name, each in kept.items()}, step
            )

    def loss(self, batch: Batch, step: int) -> float:
        """Add the gradients of a batch's mean loss to those that are there."""
        with counting(Microbatch(step + 1, len(next(iter(batch.values()))))):
            loss = self.task.loss(self.model, prepared(self.task, batch), step).mean
        loss.backward()
        return float(loss.detach())

    def gradients(self) -> dict[str, Tensor]:
        """The sums of the gradients of all batches so far."""
        found = {name: _gradient(each) for name, each in self.model.named_parameters()}
        for expert in self._experts:
            sums = self._bank.take_sums(expert).values()
            found |= {f"expert {expert}": total / samples for total, samples in sums}
        return found

    def step(self, batch: Batch, number: int) -> float:
        """Take the global step `number` (from 0) with the gradients of one batch; return the loss before it."""
        loss = self.loss(batch, number)
        for state in self._states:
            flat = torch.zeros(state.layout.size)
            for view, parameter in zip(state.layout.views(flat), state.parameters, strict=True):
                view.copy_(_gradient(parameter))
            state.apply(flat, Receipt(step=number + 1, round="00", time=1.0, seconds=0.0, record=b""))
        if self._bank is not None:
            self._bank.take(number + 1, len(next(iter(batch.values()))), self._states[0].rate_of(number + 1))
        return loss


def _task(run: RunConfig) -> Any:
    return create_task(run)


def _optimizer(run: RunConfig, groups: list[dict[str, Any]], _: torch.nn.Module) -> SharedOptimizer:
    return build_optimizer(run.optimizer, groups)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()


def spread_of(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """The mean and the standard deviation of each tensor, in six digits."""
    return {
        name: [float(f"{float(value):.6g}") for value in (each.double().mean(), each.double().std(correction=0))]
        for name, each in tensors.items()
    }


def drawn(tensors: Mapping[str, Tensor], weights: Weights) -> dict[str, Tensor]:
    """Tensors of these shapes with uniform values: the same bits on every machine."""
    made = {}
    for name, each in tensors.items():
        mean, spread = weights[name]
        unit = 2 * np.random.default_rng(zlib.crc32(name.encode())).random(tuple(each.shape)) - 1
        made[name] = torch.from_numpy(mean + spread * 3**0.5 * unit).float()
    return made


def gradients_of(run: RunConfig, weights: Weights, batches: Sequence[Batch]) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each batch, and the sum of their gradients."""
    training = Training(run)
    training.load(drawn(training.tensors(), weights))
    losses = [training.loss(batch, step) for step, batch in enumerate(batches)]
    return losses, training.gradients()


def steps_of(
    run: RunConfig, weights: Weights, batches: Sequence[Batch], starts_over: bool
) -> tuple[list[float], dict[str, list[float]]]:
    """The loss before each step, and a digest of each parameter after the last one.

    A digest is the sum, the norm, and the norm of the change since the start, computed in float64.

    :param starts_over: whether each step starts from the first parameters
    """
    training, losses = Training(run), []
    first = drawn(training.tensors(), weights)
    training.load(first)
    for number, batch in enumerate(batches):
        if starts_over:
            training.load(first)
        losses.append(training.step(batch, number))
    after = {name: each.double() for name, each in training.tensors().items()}
    return losses, {
        name: [float(each.sum()), float(each.norm()), float((each - first[name]).norm())]
        for name, each in after.items()
    }


def stored_batches(name: str) -> list[Batch]:
    """The batches of a task or a recipe, in their order."""
    found: dict[int, Batch] = {}
    with safe_open(FOLDER / f"{name}.safetensors", framework="pt") as file:
        dtypes = file.metadata() or {}
        for key in file.keys():  # noqa: SIM118
            if key in dtypes:
                _, number, part = key.split(" ")
                values = file.get_tensor(key).to(getattr(torch, dtypes[key]))
                if values.ndim == 4:  # pictures come with their colours side by side
                    values = values.contiguous(memory_format=torch.channels_last)
                found.setdefault(int(number), {})[part] = values
    return [found[number] for number in sorted(found)]


def stored_gradients(name: str) -> dict[str, Tensor]:
    """The gradients of a task."""
    with safe_open(FOLDER / f"{name}.safetensors", framework="pt") as file:
        keys = [key for key in file.keys() if key.startswith("gradient ")]  # noqa: SIM118
        return {key.removeprefix("gradient "): file.get_tensor(key) for key in keys}


def _store(name: str, batches: Sequence[Batch], gradients: Mapping[str, Tensor]) -> None:
    tensors, dtypes = {f"gradient {part}": each.contiguous() for part, each in gradients.items()}, {}
    for number, batch in enumerate(batches):
        for part, values in batch.items():
            key = f"batch {number} {part}"
            dtypes[key] = str(values.dtype).removeprefix("torch.")
            small = values.dtype in (torch.int64, torch.int32) and int(values.abs().max()) < 2**15
            tensors[key] = (values.to(torch.int16) if small else values).contiguous()
    save_file(tensors, FOLDER / f"{name}.safetensors", dtypes)


def write(name: str, before: Mapping[str, Any] | None, tokenizers: Path) -> dict[str, Any]:
    """Write the tensors of a task or a recipe; return its figures.

    :param before: the stored figures, whose batches and weights are kept; none: make new ones
    """
    run, is_task = run_of(name, tokenizers), name in runs.TASKS
    if before is None:
        rows, count = (runs.ROWS.get(name, 4), runs.BATCHES.get(name, 1)) if is_task else (4, STEPS)
        _store(name, new_batches(run, rows, count), {})
        weights = spread_of(Training(run).tensors())
        if is_task:
            weights = {key: [mean, SPREAD] for key, (mean, _) in weights.items()}
    else:
        weights = before["weights"]
    batches = stored_batches(name)
    if is_task:
        losses, gradients = gradients_of(run, weights, batches)
        _store(name, batches, gradients)
        return {"losses": losses, "weights": weights}
    losses, after = steps_of(run, weights, batches, name in MAGNIFYING)
    return {"losses": losses, "weights": weights, "after": after}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the references of training anew.")
    names = sorted([*runs.TASKS, *RECIPES])
    parser.add_argument(
        "--write", nargs="*", metavar="NAME", required=True, help="of these, or of all: " + ", ".join(names)
    )
    parser.add_argument("--new-batches", action="store_true", help="with new batches in place of the stored ones")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        runs.write_tokenizers(Path(folder))
        for name in arguments.write or names:
            before = None if arguments.new_batches else figures.get(name)
            figures[name] = write(name, before, Path(folder))
    text = json.dumps(figures, indent=1, sort_keys=True)
    lines = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)
    FIGURES.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
