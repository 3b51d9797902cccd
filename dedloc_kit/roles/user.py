"""The network's side of somebody who uses a served model: sessions with servers, in a process of its own.

What the user's own process asks comes through a pipe, and so do the answers. An interrupt in a notebook stops the
answer that is being written, not this.
"""

import asyncio
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.architecture import configuration
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.plans.plan import Server
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.blocks.weights.manifest import Manifest
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Joined, Left, State, Warned, telling_loaded
from dedloc_kit.known_peers import Memory, initial_peers
from dedloc_kit.machine.account import CODE
from dedloc_kit.pipe import Pipe
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import ModelVersion, WeightFormat, served_by_swarm
from dedloc_kit.serving.offer import short_id
from dedloc_kit.swarm.remote.pulse import round_trip
from dedloc_kit.swarm.remote.tensors import Form
from dedloc_kit.swarm.serving.client.checking import Checker
from dedloc_kit.swarm.serving.client.client import Inputs, RemoteSession, SessionConfig, SessionFailed
from dedloc_kit.swarm.serving.layers.belongings import Belongings, manifest_of, small_file
from dedloc_kit.swarm.serving.layers.choosing import servers_of
from dedloc_kit.swarm.serving.layers.versions import Versions, contents, in_use
from dedloc_kit.swarm.serving.member import Member, member
from dedloc_kit.swarm.transfer.store import Store

LOOK_SECONDS = 20.0
MEASURE_SECONDS, MEASURED = 30.0, 16
"""How often round trips are measured, and to how many servers."""
MAX_LENGTH = 2**17
"""Tokens of a session."""

_log = logging.getLogger(__name__)


def user(
    invitation: Invitation,
    peer: PeerConfig,
    pipe: Pipe,
    activations: Form,
    emit: Callable[[AnyEvent], None],
    stop: threading.Event,
) -> None:
    """Do what comes through the pipe, until it or `stop` says that it is over. Raises UserError."""
    swarm = served_by_swarm(invitation)
    emit(State(text=f"connecting to {swarm.run_id}"))
    given_up: list[Exception] = []

    def give_up(reason: Exception) -> None:
        given_up.append(reason)
        stop.set()

    with member(
        *(swarm, peer, initial_peers(invitation, peer.folder)),
        organizer=invitation.organizer,
        secret=os.environ.pop(CODE, ""),
        give_up=give_up,
    ) as me:
        role = _User(swarm, peer.folder, me, pipe, activations, emit)
        me.offers.look(LOOK_SECONDS)
        role.versions.start()
        emit(
            Joined(
                run_id=swarm.run_id,
                peer=me.peer,
                session=secrets.token_hex(8),
                addresses=me.addresses,
                step=0,
                device="",
                parameters=0,
            )
        )
        threading.Thread(target=role.listen, args=(stop,), name="requests", daemon=True).start()
        measuring = me.loop.start(role.measure())
        memory = Memory(peer.folder, swarm.run_id, me.peer, me.port)
        while not stop.wait(1.0):
            others = me.offers.others()
            memory.update({p: each.addresses for p, each in others.items() if each.addresses})
        measuring.cancel()
        role.versions.stop()
        me.loop.run(role.close())
    if given_up:
        raise given_up[0]
    emit(Left(step=0, session_samples=0))


class _User:
    def __init__(
        self,
        swarm: SwarmConfig,
        folder: Path,
        me: Member,
        pipe: Pipe,
        activations: Form,
        emit: Callable[[AnyEvent], None],
    ) -> None:
        self._folder, self._me, self._pipe, self._emit = folder, me, pipe, emit
        self._activations = activations
        self._store = Store(folder / "content")
        self.versions = Versions(swarm, me, self._store)
        self._versions: dict[str, ModelVersion] = {}
        """Those that the user's process has had prepared, by the digests of their manifests."""
        self._manifest: Manifest | None = None
        self._sessions: dict[str, RemoteSession] = {}
        self._adapters: dict[str, Adapter] = {}
        self._passes: dict[str, tuple[RemoteSession, Inputs, Tensor | None, Tensor | None]] = {}
        self._avoided: dict[str, float] = {}
        self._round_trips: dict[str, float] = {}
        self._checker = Checker(
            *(me.caller, me.peer, self._servers, self._form, self._avoided),
            told=lambda text: emit(Warned(text=text)),
        )
        self._begun = {
            "adapt": self._adapt,
            "step": self._step,
            "forward": self._forward,
            "backward": self._backward,
            "close": self._close,
            "route": self._route,
        }

    def listen(self, stop: threading.Event) -> None:
        """Take what the user's process asks, until it is gone."""
        while True:
            try:
                values, tensors = self._pipe.receive()
            except (OSError, EOFError):
                stop.set()
                return
            self._me.loop.start(self._answer(values, tensors))

    async def _answer(self, values: dict[str, Any], tensors: list[Tensor | None]) -> None:
        number, what = values["number"], values["do"]
        said: dict[str, Any]
        back: list[Tensor] = []
        try:
            if what == "newest":
                version = self._newest()
                said = {"version": "" if version is None else version.manifest}
            elif what == "prepare":
                said = await asyncio.to_thread(self._prepare)
            elif what == "obtain":
                said = await asyncio.to_thread(self._obtain, values["names"], values["source"])
            else:
                said, back = await self._begun[what](values, tensors)
        except NoRoute as error:
            missing = [[span.begin, span.end] for span in error.missing]
            said = {"error": str(error), "missing": missing}
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            said = {"error": f"servers take no such request ({where}: {wrong['msg']}); give the model other shapes"}
        except (UserError, SessionFailed, ValueError, OSError) as error:
            said = {"error": str(error) or repr(error)}
        except Exception as error:
            _log.exception("a request failed")
            said = {"error": f"an unexpected error: {error!r:.300}"}
        with suppress(OSError):  # the user's process is gone, which `listen` sees
            await asyncio.to_thread(self._pipe.send, {"number": number, **said}, back)

    def _newest(self) -> ModelVersion | None:
        """The newest version with which all layers are served; where that is not known, none or the only one."""
        known, offers = self.versions.known, self._me.offers
        if self.versions.fixed or not known:
            return known[0] if known else None
        return in_use(known, configuration(known[0].config).num_hidden_layers, offers.others(), offers)

    def _awaited(self) -> ModelVersion:
        """The same; raises UserError if there is none."""
        until = time.monotonic() + LOOK_SECONDS
        while (version := self._newest()) is None:
            if time.monotonic() > until:
                raise UserError("nobody serves all layers of a version of this run's model now; try again later")
            time.sleep(0.5)
        return version

    def _prepare(self) -> dict[str, Any]:
        """Have the manifest and the small files of the newest version here."""
        me, folder, version = self._me, self._folder / "model", self._awaited()
        folder.mkdir(parents=True, exist_ok=True)
        self._manifest = manifest_of(version, me.loop, me.donors(), me.content)
        self._versions[version.manifest] = version
        if not self.versions.fixed:  # what was loaded before is in memory
            self._store.keep_only(contents(version, self._manifest))
        for name, digest in version.files.items():
            content = small_file(name, digest, self._store, me.loop, me.donors(), me.content)
            (folder / name).write_bytes(content)
        (folder / "config.json").write_text(json.dumps(version.config), encoding="utf-8")
        (folder / "manifest.json").write_text(self._manifest.canonical(), encoding="utf-8")
        return {
            "folder": str(folder),
            "version": version.model_dump(mode="json", include=set(ModelVersion.model_fields)),
        }

    def _obtain(self, names: list[str], source: str | None) -> dict[str, Any]:
        """Have these tensors here; says in which folder, where each is named by its hash or as in the model."""
        assert self._manifest is not None
        version = self._versions[self._manifest.digest]
        if source is not None and not self.versions.fixed:
            raise UserError("a source is for a model that stays as it is; leave it out for one that a run trains")
        belongings = Belongings(version, self._manifest, self._store, source)
        belongings.obtain(names, self._me.loop, self._me.donors(), self._me.content, telling_loaded(self._emit))
        return {"files": str(belongings.folder or ""), "store": str(self._store.folder)}

    def _session(self, values: Mapping[str, Any], form: Form) -> RemoteSession:
        name = values["session"]
        if name not in self._sessions:
            manifest = values["version"]
            model = configuration(self._versions[manifest].config)
            config = SessionConfig(
                version=manifest,
                layers=model.num_hidden_layers,
                hidden_size=model.hidden_size,
                length=min(MAX_LENGTH, values["length"]),
                form=form,
                adapter=self._adapters.get(name),
            )
            self._sessions[name] = RemoteSession(
                *(self._me.caller, self._me.peer, partial(self._servers, manifest), self._trips, config),
                avoided=self._avoided,
                checker=self._checker,
            )
        return self._sessions[name]

    async def _adapt(self, values: dict[str, Any], tensors: list[Tensor | None]) -> tuple[dict[str, Any], list[Tensor]]:
        """The adapter that a session is to have, which has not begun."""
        named = {name: tensor for name, tensor in zip(values["names"], tensors, strict=True) if tensor is not None}
        self._adapters[values["session"]] = Adapter.of(named, values["scaling"])
        return {}, []

    async def _step(self, values: dict[str, Any], tensors: list[Tensor | None]) -> tuple[dict[str, Any], list[Tensor]]:
        hidden, mask, positions = tensors
        assert hidden is not None
        rows = None if values["rows"] is None else tuple(values["rows"])
        form = self._activations
        session = self._session(values, "float16" if form == "8bit" else form)  # each replay would round once more
        try:
            output = await session.step(hidden, mask, positions, Past(values["tokens"], rows, values["undoable"]))
        except BaseException:
            self._sessions.pop(values["session"], None)
            raise
        return {"recoveries": session.recoveries}, [output]

    async def _forward(
        self, values: dict[str, Any], tensors: list[Tensor | None]
    ) -> tuple[dict[str, Any], list[Tensor]]:
        hidden, mask, positions = tensors
        assert hidden is not None
        session = self._session({**values, "length": hidden.shape[1]}, self._activations)
        try:
            output, inputs = await session.forward(hidden, mask, positions)
        except BaseException:
            self._sessions.pop(values["session"], None)
            raise
        if values["keep"]:
            self._passes[values["session"]] = session, inputs, mask, positions
        else:
            await self._close(values, [])
        return {}, [output]

    async def _backward(
        self, values: dict[str, Any], tensors: list[Tensor | None]
    ) -> tuple[dict[str, Any], list[Tensor]]:
        (gradient,) = tensors
        assert gradient is not None
        session, inputs, mask, positions = self._passes[values["session"]]
        back, of_adapter = await session.backward(inputs, mask, positions, gradient)
        return {"names": list(of_adapter)}, [back, *of_adapter.values()]

    async def _close(self, values: dict[str, Any], _: list[Tensor | None]) -> tuple[dict[str, Any], list[Tensor]]:
        self._passes.pop(values["session"], None)
        self._adapters.pop(values["session"], None)
        session = self._sessions.pop(values["session"], None)
        if session is not None:
            await session.close()
        return {}, []

    async def _route(self, values: dict[str, Any], _: list[Tensor | None]) -> tuple[dict[str, Any], list[Tensor]]:
        """Who answers in a session, or could."""
        session = self._sessions.get(values["session"])
        names = {peer: each.name for peer, each in self._me.offers.others().items()}
        hops = (
            []
            if session is None
            else [[hop.server, names.get(hop.server, ""), hop.span.begin, hop.span.end] for hop in session.route]
        )
        return {"route": hops}, []

    def _servers(self, version: str) -> list[Server]:
        return servers_of(self._me.offers.others(), self._me.offers, {version}, ready=True)

    def _form(self, server: str) -> WeightFormat:
        """In which it holds its weights, as it says."""
        serving = self._me.offers.others().get(server)
        return "float32" if serving is None else serving.form

    def _trips(self) -> dict[tuple[str, str], float]:
        """Seconds between peers: ours as measured, the others' as they say."""
        others = self._me.offers.others()
        named = {short_id(peer): peer for peer in others}
        trips = {(self._me.peer, peer): seconds for peer, seconds in self._round_trips.items()}
        for peer, each in others.items():
            trips |= {(peer, named[to]): seconds for to, seconds in each.round_trips.items() if to in named}
        return trips

    async def measure(self) -> None:
        """How far the servers are, again and again."""
        due = dict[str, float]()
        while True:
            now = time.monotonic()
            near = [peer for peer in self._me.offers.others() if due.get(peer, 0.0) <= now][:MEASURED]
            for peer in near:
                due[peer] = now + MEASURE_SECONDS
            await asyncio.gather(*map(self._measure, near))
            await asyncio.sleep(1.0)

    async def _measure(self, peer: str) -> None:
        try:
            self._round_trips[peer] = await round_trip(self._me.caller, peer)
        except (OSError, EOFError, ValueError) as error:
            _log.info("no round trip to %s: %r", peer, error)

    async def close(self) -> None:
        await self._checker.close()
        await asyncio.gather(*(session.close() for session in self._sessions.values()))
