"""What a run takes, found out before it begins: its data is opened and one microbatch goes through its model here."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.places import volunteers_read
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import public_name
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source, TaskConfig
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.coordinator.stage_costs import rows_of, stage_costs
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, GoingOn, Rehearsed, SampleCost, StageCost, State, Warned
from dedloc_kit.experts.bank import names_of
from dedloc_kit.experts.frozen import Frozen
from dedloc_kit.experts.mixture import connect
from dedloc_kit.experts.network import Network
from dedloc_kit.hub import HubUnavailable, closed
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.models.init_from import Undescribed
from dedloc_kit.learning.task import Batch, Task, create_task, prepared
from dedloc_kit.learning.tasks.batches import batches_of, run_on
from dedloc_kit.learning.tasks.text.common import TextTask
from dedloc_kit.learning.train.computing.card import Card, samples_in
from dedloc_kit.learning.train.computing.device import (
    describe_device,
    half_precision,
    pick_devices,
    set_threads,
    usable_devices,
)
from dedloc_kit.learning.train.computing.microbatch import (
    MAX_SAMPLES,
    find_microbatch,
    largest_microbatch,
    pieces,
)
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.roles.data_check import survey
from dedloc_kit.roles.overlap import Fingerprints
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of

_BATCHES = 4
"""So many are measured: samples are not all alike."""
_MAX_SECONDS = 15.0
_SURVEY_SECONDS = 15.0
"""For looking into the files of all sources."""
_FEW = 8


def rehearse(run: RunConfig, peer: JoinOptions, emit: Callable[[AnyEvent], None], stop: threading.Event) -> None:
    """Emit what the run takes as `Rehearsed`. Raises UserError with the fix for a run that cannot work."""

    def warn(text: str) -> None:
        emit(Warned(text=text))

    devices = pick_devices(peer.devices)
    device = usable_devices(devices, peer.devices)[0]
    set_threads(peer.threads)
    _check_vocabulary(run)
    try:
        task = create_task(run, peer.task_module)
    except Undescribed as error:
        emit(State(text=error.lines))
        raise
    readable = _read_sources(run, task, peer, emit, warn)
    _read_without_token(run, warn)
    if run.pipeline is not None:
        emit(_staged(run_on(run, readable) if readable else run, peer, device, bool(readable), emit, warn))
        return
    model = task.model()
    cost = None
    if readable:
        emit(State(text="trying how many samples this machine takes at once; for a large model it takes minutes"))
        mixture = run_on(run, readable)
        if run.experts is not None:  # all cost alike, and this machine need not hold them
            same = Network(run.experts.width, run.experts.hidden, 0)
            connect(model, Frozen(dict.fromkeys(names_of(run.experts), same), run.experts.grid))
        cost = _cost(
            create_task(mixture, peer.task_module), model, device, mixture, peer.microbatch or run.microbatch or 0, warn
        )
    layout = FlatLayout.of([each for group in task.groups(model) for each in group["params"]])
    codec = codec_of(run.averaging.compression)
    small = codec.small.byte_count(layout.size - layout.large)
    emit(
        Rehearsed(
            parameters=layout.size,
            gradient_bytes=codec.gradients.byte_count(layout.large) + small,
            average_bytes=codec.averages.byte_count(layout.large) + small,
            device=describe_device(device),
            cost=cost,
            going_on=_going_on(run, task, peer, emit, warn),
        )
    )


def _staged(
    run: RunConfig,
    peer: JoinOptions,
    device: torch.device,
    readable: bool,
    emit: Callable[[AnyEvent], None],
    warn: Warn,
) -> Rehearsed:
    """What the stages of a pipeline take; a sample costs what it does in all of them."""
    task = create_task(run, peer.task_module)
    stages: tuple[StageCost, ...] = ()
    cost = None
    if readable:
        emit(State(text="trying each stage for itself; for a large model it takes minutes"))
        sample = next(batches_of(run, task, 1, seed_of(run.run_id, "rehearsal"), warn))
        stages, rows = stage_costs(run, task, sample, device), rows_of(run, sample)
        cost = SampleCost(
            flops=sum(stage.flops for stage in stages) / rows,
            kept_bytes=max(stage.kept_bytes for stage in stages) // rows,
            microbatch=rows,
            samples_per_second=rows / sum(stage.seconds for stage in stages),
        )
    return Rehearsed(
        parameters=sum(stage.parameters for stage in stages),
        gradient_bytes=sum(stage.gradient_bytes for stage in stages),
        average_bytes=sum(stage.average_bytes for stage in stages),
        device=describe_device(device),
        cost=cost,
        stages=stages,
    )


def _going_on(
    run: RunConfig, task: Task, peer: JoinOptions, emit: Callable[[AnyEvent], None], warn: Warn
) -> GoingOn | None:
    """Read the model that the run goes on from, and measure it as the run will begin with it."""
    if (made := task.vocabulary_transfer()) is None:
        return None
    emit(State(text=f"reading the model that the run goes on from, {public_name(str(run.task.options['init_from']))}"))

    def measured(task: Task) -> dict[str, float] | None:
        model = task.first_model()
        if run.data.evaluation is None:
            return None
        found = task.evaluate(model)
        return {"loss": found.loss, **found.metrics}

    now, before = measured(task), None
    if "tokenizer" in run.task.options:
        options = {key: value for key, value in run.task.options.items() if key != "tokenizer"}
        unchanged = run.model_copy(update={"task": TaskConfig(name=run.task.name, **options)})
        before = measured(create_task(unchanged, peer.task_module))
    return GoingOn(copied=made.copied, averaged=made.averaged, drawn=made.drawn, held_out=now, held_out_before=before)


def _check_vocabulary(run: RunConfig) -> None:
    wanted, name = run.task.options.get("vocab_size"), run.task.options.get("tokenizer")
    if not isinstance(name, str) or not isinstance(wanted, int):
        return
    found = len(load_tokenizer(name))
    if found != wanted:
        raise UserError(
            f"task.vocab_size is {wanted} and the tokenizer ({public_name(name)}) has {found} tokens; set vocab_size = "
            f"{found}, or remove the tokenizer's folder and train another one with: dedloc prepare tokenizer RUN.toml"
        )


def _read_sources(
    run: RunConfig, task: Task, peer: JoinOptions, emit: Callable[[AnyEvent], None], warn: Warn
) -> tuple[Source, ...]:
    """Look into every source by itself, the held-out data too: each must be there and hold what it should.

    Returns the training sources that could be read: offline only those on this machine. Raises UserError once all
    have been looked into, for all that must be mended is told in one go.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    readable: list[Source] = []
    faults: list[str] = []
    trained, files = set[int](), set[tuple[str, str]]()
    learned = (*run.data.train, *run.data.cooldown)
    sources = (*learned, *filter(None, [run.data.evaluation]))
    fingerprints = Fingerprints()
    if isinstance(task, TextTask) and any(source.tokenized for source in sources):
        fingerprints = Fingerprints(task.texts, task.tokenizer.decode)
    for number, source in enumerate(sources):
        held_out = number >= len(learned)
        if held_out and any(_same(source, each) for each in learned):
            faults.append(_held_out_too(source.dataset))
            continue
        if HF_HUB_OFFLINE and not Path(source.dataset).is_absolute():
            warn(f"{source.dataset} is on the Hub and is not looked at: offline")
            continue
        emit(State(text=f"reading a few samples of {source.dataset}, {source.split}"))
        seconds = _SURVEY_SECONDS / len(sources)
        if source.tokenized or task.own_records:
            surveyed = survey(source, seconds, warn, fingerprints, task.read)
        else:
            surveyed = survey(source, seconds, warn, fingerprints)
        for line in surveyed.lines:
            emit(State(text=line))
        if held_out and (shared := surveyed.files & files):
            surveyed.faults.append(_held_out_too(min(shared)[0]))
        elif held_out and (both := len(surveyed.documents & trained)):
            surveyed.odd.append(
                f"{both} of {len(surveyed.documents)} held-out {'samples' if source.tokenized else 'documents'} that "
                "were read are training data too; hold out others"
            )
        if not surveyed.faults:
            try:
                alone = run_on(run, (source,))
                if held_out:  # nobody makes it again from its name
                    alone = alone.model_copy(update={"trust": TrustConfig()})
                own = create_task(alone, peer.task_module)
                _describe_samples(run, batches_of(alone, own, _FEW, 0, lambda _: None), source, emit, surveyed.odd)
            except UserError as error:
                surveyed.faults.append(str(error))
        for line in surveyed.odd:
            warn(line)
        faults += surveyed.faults
        if number < len(run.data.train):
            readable.append(source)
        if not held_out:
            trained |= surveyed.documents
            files |= surveyed.files
    if len(faults) > 1:
        for fault in faults:
            warn(fault)
        raise UserError(f"the {len(faults)} faults of the data that the lines above name must be mended; {faults[0]}")
    if faults:
        raise UserError(faults[0])
    return tuple(readable)


def _read_without_token(run: RunConfig, warn: Warn) -> None:
    """Tell what this machine reads with its organizer's token and volunteers could not read."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    for (name, revision), kind in {} if HF_HUB_OFFLINE else volunteers_read(run).items():
        try:
            reason = closed(name, revision, kind)
        except (UserError, HubUnavailable):
            continue  # it has been read a moment ago
        if reason:
            warn(
                f"{name} is {reason} on the Hub: this machine's token reads it, and volunteers have none that may; "
                "make it public, or give each of them access to it"
            )


def _same(one: Source, other: Source) -> bool:
    """Whether they are the same data, whatever weight it has."""
    return one.model_copy(update={"weight": 1.0}) == other.model_copy(update={"weight": 1.0})


def _held_out_too(name: str) -> str:
    return (
        f"{name} is read for training and as held-out data too, which would measure nothing; hold out other files, or "
        "leave [data.evaluation] out"
    )


def _describe_samples(
    run: RunConfig, batches: Iterator[Batch], source: Source, emit: Callable[[AnyEvent], None], odd: list[str]
) -> None:
    """Take a few samples and tell how much of them is used, where they have an attention mask."""
    masks = [batch["attention_mask"] for batch in islice(batches, _BATCHES) if "attention_mask" in batch]
    if not masks:
        return
    length = run.task.options.get("sequence_length", max(mask.shape[1] for mask in masks))
    tokens = fmean(float(mask.sum(1).float().mean()) for mask in masks)
    told = f"{source.dataset}, {source.split}: {tokens:.0f} tokens in a sample of {length} ({tokens / length:.0%} used)"
    emit(State(text=told))
    if tokens < length / 4:
        odd.append(f"{told}: the documents are short; join those that belong together, or lower task.sequence_length")


def _cost(
    task: Task, model: nn.Module, device: torch.device, run: RunConfig, microbatch: int, warn: Warn
) -> SampleCost:
    batches = batches_of(run, task, microbatch or MAX_SAMPLES, seed_of(run.run_id, "rehearsal"), warn)
    some = list(islice(batches, _BATCHES))
    card = Card(FlatModel(model, device), task.loss, half_precision(device), prepare=task.prepare)
    suits = microbatch or find_microbatch(card, some[0])
    if suits > run.peer_batch:
        shared = run.averaging.mode == "global-batch"
        key, enough = ("global_batch", 8 * suits) if shared else ("averaging.local_batch", suits)
        raise UserError(
            f"{key} is {run.peer_batch}, smaller than one microbatch ({suits} samples); set it to {enough} or more"
        )
    size = microbatch or min(suits, largest_microbatch(run))
    single = [next(pieces(batch, 1)) for batch in some]
    return SampleCost(
        flops=fmean(_flops(task, model, batch) for batch in _in_time(single)),
        kept_bytes=_kept_bytes(task, model, single[0]),
        microbatch=size,
        samples_per_second=_rate(card, [next(pieces(batch, size)) for batch in some]),
    )


def _rate(card: Card, batches: list[Batch]) -> float:
    """Samples per second through forward and backward pass; it waits for each. Gradients are cleared."""
    samples, began = 0, time.perf_counter()
    for batch in _in_time(batches):
        if card.measure(batch) is None:
            raise UserError("the memory of this device does not hold so many samples at once; choose fewer")
        samples += samples_in(batch)
    card.clear()
    return samples / (time.perf_counter() - began)


def _flops(task: Task, model: nn.Module, batch: Batch) -> float:
    """Of the matrix products and convolutions of a forward and backward pass; the latter has twice as many."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)  # the counter cannot do with a part of a parameter that a module is given
    try:
        # Fused attention is not counted everywhere; its plain form is.
        with torch.no_grad(), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            task.loss(model, prepared(task, batch, next(model.parameters()).device), 0)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
    return 3.0 * float(counter.get_total_flops())


def _kept_bytes(task: Task, model: nn.Module, batch: Batch) -> int:
    """What a forward pass in float32 keeps for the backward pass, beside the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(model, prepared(task, batch, next(model.parameters()).device), 0)
    return sum(kept.values())


def _in_time(batches: list[Batch]) -> Iterator[Batch]:
    """The first of them, and further ones as long as it does not take long."""
    began = time.perf_counter()
    for batch in batches:
        yield batch
        if time.perf_counter() - began > _MAX_SECONDS:
            return
