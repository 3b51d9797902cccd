"""A model's weights from other servers: what is asked for is named by the manifest's hashes, whoever gives it."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from dedloc_kit.blocks.weights import weights
from dedloc_kit.blocks.weights.manifest import MAX_BYTES, Manifest, places
from dedloc_kit.errors import UserError
from dedloc_kit.swarm.transfer.addressed import fetch_small
from dedloc_kit.swarm.transfer.download import OpenStream
from dedloc_kit.swarm.transfer.gathering import Gathering
from dedloc_kit.swarm.transfer.store import FilePart, Store

_NUMBER = re.compile(r"(?:^|\.)(\d{1,9})\.")


class NotGiven(UserError):
    """No donor gives some of the weights: perhaps others will."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(names)
        numbers = {found[1] for name in self.names if (found := _NUMBER.search(name))}
        which = f"layers {', '.join(sorted(numbers, key=int))}" if numbers else self.names[0]
        super().__init__(
            f"no server gives the weights of {which} now ({len(self.names)} tensors are missing); wait for one that "
            "has them, or name the folder or repository that the model is from"
        )


class ModelContents:
    """The tensors in a model's own files, found by their hashes.

    :param folder: it may hold only some of the files
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._tensors = {tensor.sha256: (name, tensor) for name, tensor in manifest.tensors.items()}
        self._places: dict[str, dict[str, tuple[int, int]]] = {}

    def find(self, digest: str) -> FilePart | None:
        """Where it lies; None if it is no tensor of the model, or its file is missing or another."""
        if digest not in self._tensors:
            return None
        name, tensor = self._tensors[digest]
        try:
            if tensor.file not in self._places:
                self._places[tensor.file] = places(self._folder / tensor.file)
        except UserError:
            return None
        begin, end = self._places[tensor.file].get(name, (0, 0))
        return FilePart(self._folder / tensor.file, begin, tensor.size) if end - begin == tensor.size else None


async def fetch_manifest(digest: str, donors: Sequence[str], open_stream: OpenStream) -> Manifest | None:
    """The manifest with this digest; None if no donor gives it."""
    text = await fetch_small(digest, MAX_BYTES, donors, open_stream)
    try:
        return None if text is None else Manifest.from_json(text)
    except ValueError as error:
        raise UserError(f"what the swarm says are its model's weights is no manifest ({error})") from None


async def fetch(
    names: Iterable[str],
    manifest: Manifest,
    store: Store,
    donors: Sequence[str],
    open_stream: OpenStream,
    on_progress: Callable[[int, int], None],
) -> None:
    """Get all of these tensors into the store; what is there and undamaged is not fetched again.

    :param donors: peer ids of servers that may have some of them
    :param open_stream: to a donor's ContentService
    :param on_progress: called some times a second with the bytes that are there and those of all these tensors

    Raises NotGiven if the donors do not give all of it, and UserError if the disk is full. Cancelled, it stops.
    """
    names = set(names)
    weights.shards(manifest, names)
    wanted = {tensor.sha256: tensor.size for name in names if (tensor := manifest.tensors[name]).size}
    missing = {digest: size for digest, size in wanted.items() if not await asyncio.to_thread(store.holds, digest)}
    total, to_come = sum(wanted.values()), sum(missing.values())
    store.make_room(to_come)
    on_progress(total - to_come, total)
    gathering = Gathering(store, missing, donors, open_stream)
    if left := await gathering.complete(lambda received: on_progress(total - to_come + received, total)):
        raise NotGiven(name for name in names if manifest.tensors[name].sha256 in left)


def read(store: Store, manifest: Manifest, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Fetched tensors as `blocks.weights.read` gives them."""
    return weights.read_each(store.folder, manifest, names)
