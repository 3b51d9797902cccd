"""What a peer has of a served model on this machine: its own files, and what others have given."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from dedloc_kit.blocks.weights import weights
from dedloc_kit.blocks.weights.manifest import Manifest
from dedloc_kit.errors import UserError
from dedloc_kit.serving.config import ModelVersion
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.serving.layers.weights import ModelContents, fetch, fetch_manifest, read
from dedloc_kit.swarm.transfer.addressed import fetch_small
from dedloc_kit.swarm.transfer.download import OpenStream
from dedloc_kit.swarm.transfer.store import FilePart, Store

MAX_SMALL = 2**26
"""Bytes of one of a model's small files."""
Progress = Callable[[int, int], None]


class Belongings:
    """Everything of the model that is on this machine, by hash, and how more of it comes here.

    :param source: a folder or `OWNER/NAME@COMMIT` of the Hub; none if all comes from other servers
    """

    def __init__(self, version: ModelVersion, manifest: Manifest, store: Store, source: str | None) -> None:
        self.version, self.manifest = version, manifest
        self._store = store
        self._source = source or (version.model if version.from_hub else None)
        self.folder: Path | None = None
        """Of the model's own files, if they are here."""
        self._contents: ModelContents | None = None
        store.put(manifest.canonical().encode())

    def keep(self, content: bytes) -> str:
        """A small file of the model; returns its hash."""
        return self._store.put(content)

    def find(self, digest: str) -> FilePart | None:
        """Where the content with this hash is."""
        found = self._contents.find(digest) if self._contents is not None else None
        return found or self._store.find(digest)

    def obtain(
        self, names: Iterable[str], loop: Loop, donors: Sequence[str], open_stream: OpenStream, on_progress: Progress
    ) -> None:
        """Have these tensors here: from the source, or from others if there is none or it does not answer.

        Raises UserError if they are not to be had. Call it outside the loop.
        """
        names = list(names)
        if self._source is not None:
            try:
                self.folder = weights.locate(self._source, sorted(weights.shards(self.manifest, names)))
                self._contents = ModelContents(self.folder, self.manifest)
                return
            except UserError:
                if not donors:
                    raise
        loop.run(fetch(names, self.manifest, self._store, donors, open_stream, on_progress))
        self.folder = None

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """As stored, each checked; after `obtain`."""
        if self.folder is not None:
            return weights.read(self.folder, self.manifest, names)
        return read(self._store, self.manifest, names)


def manifest_of(version: ModelVersion, loop: Loop, donors: Sequence[str], open_stream: OpenStream) -> Manifest:
    """From whoever serves the model; raises UserError if nobody gives it."""
    manifest = loop.run(fetch_manifest(version.manifest, donors, open_stream))
    if manifest is None:
        raise UserError(f"nobody gives the list of the weights of {version.model} now; try again later")
    return manifest


def small_file(
    name: str, digest: str, store: Store, loop: Loop, donors: Sequence[str], open_stream: OpenStream
) -> bytes:
    """One of a model's small files, which is in the store then; raises UserError if nobody gives it."""
    found = store.find(digest)
    if found is not None:
        return found.read(0, found.size)
    content = loop.run(fetch_small(digest, MAX_SMALL, donors, open_stream))
    if content is None:
        raise UserError(f"nobody gives {name} of the model now; try again later")
    store.put(content)
    return content
