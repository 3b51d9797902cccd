"""How a peer comes into a swarm: the organizer lets it in, it looks around, its node starts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import UserError
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.swarm.membership.admission import come_in
from dedloc_kit.swarm.network.bootstrap import Surroundings, look_around, start_node
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.node import Node


class Entry:
    """One peer's way in.

    :param organizer: peer id of the coordinator, as the invitation says; none if it is this peer
    :param secret: a personal code or a token of the Hub, for the coordinator of a run that is not open
    :param session: that this peer goes on with; a new one if it is empty
    """

    def __init__(
        self,
        run: SwarmConfig,
        peer: PeerConfig,
        initial_peers: Sequence[str],
        organizer: str | None,
        secret: str = "",
        *,
        may_start_alone: bool = False,
        preferred_port: int = 0,
        session: str = "",
    ) -> None:
        self.session = session
        self.identity = Identity(peer.folder / IDENTITY_FILE)
        self.signer = Signer(self.identity)
        self._run, self._peer, self._initial_peers, self._secret = run, peer, initial_peers, secret
        self._organizer, self._may_start_alone, self._preferred_port = organizer, may_start_alone, preferred_port
        restricted = run.access.who != "open"
        self.gate = Gate(run.run_id, organizer or self.signer.peer, self.signer, restricted=restricted, parts=run.parts)

    def surroundings(self) -> Surroundings:
        """Be let in and look around; forks nothing, so it may run in a thread. Raises UserError."""
        if self.gate.restricted and self._organizer is not None:
            come_in(self._run, self.gate, self.identity, self._initial_peers, self._secret)
        with self._asking_why():
            return look_around(
                self._peer,
                self.identity,
                self._initial_peers,
                gate=self.gate,
                may_start_alone=self._may_start_alone,
                preferred_port=self._preferred_port,
            )

    def start(self, around: Surroundings) -> Node:
        """Start the node, which forks: call it in a process's main thread. Raises UserError."""
        with self._asking_why():
            return start_node(self._peer, self.identity, around, gate=self.gate, may_start_alone=self._may_start_alone)

    @contextmanager
    def _asking_why(self) -> Iterator[None]:
        """If nobody answers in an open run, it may be that the organizer wants it so."""
        try:
            yield
        except UserError:
            if self._organizer is not None and not self.gate.restricted:
                come_in(self._run, self.gate, self.identity, self._initial_peers)
            raise
