"""What a server has on its disk of the versions that it serves, and how layers come from there into memory."""

from collections.abc import Collection
from typing import Any

from dedloc_kit.blocks.architecture import Layout, skeleton
from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.blocks.served import ServedModel
from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.manifest import Manifest
from dedloc_kit.blocks.weights.weights import load
from dedloc_kit.errors import UserError
from dedloc_kit.serving.config import ModelVersion, ServerConfig
from dedloc_kit.swarm.serving.layers.belongings import Belongings, Progress, manifest_of, small_file
from dedloc_kit.swarm.serving.layers.versions import Versions, contents
from dedloc_kit.swarm.serving.member import Member
from dedloc_kit.swarm.transfer.store import FilePart


class Disk:
    """One server's.

    :param config: of the model, in all versions
    """

    def __init__(self, versions: Versions, peer: ServerConfig, me: Member, config: Any) -> None:
        self._versions, self._peer, self._me, self._config = versions, peer, me, config
        self._store = versions.store
        self._belongings: dict[str, Belongings] = {}  # by the digest of the manifest

    def find(self, digest: str) -> FilePart | None:
        """Where the content with this hash is, for others."""
        found = (each.find(digest) for each in list(self._belongings.values()))
        return next((part for part in found if part is not None), None)

    def begin(self, version: ModelVersion, served: ServedModel) -> None:
        """This machine has the model, and begins to serve it."""
        belongings = Belongings(version, served.manifest, self._store, str(served.folder))
        for name in served.files:
            belongings.keep((served.folder / name).read_bytes())
        self._belongings[version.manifest] = belongings

    def manifest(self, version: ModelVersion) -> Manifest:
        """Of a version, from others if it is not here. Raises UserError, as all that follows."""
        return self._of(version).manifest

    def load(self, version: ModelVersion, span: LayerRange, on_progress: Progress) -> Span:
        """These layers, from others where they are not here."""
        belongings, me = self._of(version), self._me
        module = Span(self._config, span.begin, span.end)
        wanted = module.wanted(belongings.manifest.tensors)
        names = [*wanted, *self._ends(belongings, span)]
        belongings.obtain(names, me.loop, me.donors(), me.content, on_progress)
        module.requires_grad_(False)
        load(module, module.merged(wanted, belongings.tensors(wanted)), self._peer.weights)
        return module

    def tidy(self, served: Collection[str]) -> None:
        """Of a run's versions keep only these, by the digests of their manifests."""
        if self._versions.fixed:
            return
        self._belongings = {digest: each for digest, each in self._belongings.items() if digest in served}
        kept = {version.digest for version in self._versions.known}
        self._store.keep_only(
            kept.union(*(contents(each.version, each.manifest) for each in self._belongings.values()))
        )

    def _of(self, version: ModelVersion) -> Belongings:
        if version.manifest not in self._belongings:
            if self._peer.source is not None and not self._versions.fixed:
                raise UserError("--source is for a model that stays as it is; leave it out for one that a run trains")
            manifest = manifest_of(version, self._me.loop, self._me.donors(), self._me.content)
            self._belongings[version.manifest] = Belongings(version, manifest, self._store, self._peer.source)
        return self._belongings[version.manifest]

    def _ends(self, belongings: Belongings, span: LayerRange) -> list[str]:
        """What a server of a run's first layer has of the model besides, so that users can begin while the organizer
        is away: its small files, which are here then, and these tensors."""
        if self._versions.fixed or span.begin:
            return []
        for name, digest in belongings.version.files.items():
            small_file(name, digest, self._store, self._me.loop, self._me.donors(), self._me.content)
        return Layout.of(skeleton(self._config)).outside(belongings.manifest.tensors)
