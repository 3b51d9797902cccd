"""A user's own adapter for a served model: made, used and trained through its servers, saved as `peft` reads it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from dedloc_kit.blocks.adapters import adapter_files, lora
from dedloc_kit.blocks.adapters.lora import LoraConfig, TrainableAdapter
from dedloc_kit.blocks.architecture import configuration
from dedloc_kit.inference.worker_link import Network

Current = ContextVar[TrainableAdapter | None]
"""The adapter that a thread's calls of a model use."""


def new_adapter(model: Any, config: LoraConfig, seed: int = 0) -> TrainableAdapter:
    """One that changes nothing yet; raises UserError if a target is in none of the layers."""
    return lora.new_adapter(config, _config(model), seed)


def save_adapter(model: Any, adapter: TrainableAdapter, folder: str | Path) -> None:
    """Raises UserError as `adapter_files.save_adapter`."""
    name = model.loaded.version.model.partition("@")[0]
    adapter_files.save_adapter(adapter.adapter(), Path(folder), _config(model), name)


def load_adapter(model: Any, folder: str | Path) -> TrainableAdapter:
    """What `save_adapter` or `peft` wrote; raises UserError if it is for another model, or not of plain LoRA."""
    loaded = adapter_files.load_adapter(Path(folder), _config(model))
    return TrainableAdapter(loaded.tensors, loaded.form.scaling)


def within(current: Current) -> Callable[[TrainableAdapter], AbstractContextManager[None]]:
    """A context in which a model's calls and new sessions, of this thread, use an adapter; a session keeps the one with
    which it began."""

    @contextmanager
    def adapted(adapter: TrainableAdapter) -> Iterator[None]:
        before = current.set(adapter)
        try:
            yield
        finally:
            current.reset(before)

    return adapted


def give(network: Network, session: str, adapter: TrainableAdapter | None) -> None:
    """Let a session that has not begun have it, as it is now. Raises UserError if it is not finite any more."""
    if adapter is not None:
        values = {"session": session, "names": list(adapter.named), "scaling": adapter.scaling}
        network.ask("adapt", values, list(adapter.named.values()))


def _config(model: Any) -> Any:
    """Of the whole model; the ends' own says that there are no layers."""
    return configuration(model.loaded.version.config)
