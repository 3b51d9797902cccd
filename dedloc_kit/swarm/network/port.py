"""The port that a peer is to listen at."""

import socket


class HeldPort:
    """A port that nobody listens at, kept from others until p2pd does.

    That is seconds later, and p2pd shares silently: two peers that begin on one machine would else find the same port
    free, and each would get some of the connections that are meant for the other.

    :ivar number: of the port
    """

    def __init__(self, host: str, port: int = 0) -> None:
        """:param port: any free one if it is 0; raises OSError if it is taken"""
        with _socket() as probe:
            # Connections of an earlier session linger for a minute; they are no hindrance, a listener still is.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            self.number = int(probe.getsockname()[1])
        self._held = _socket()
        # Who says so as well may listen there: p2pd, and who finds out whether others reach this machine.
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._held.bind((host, self.number))
        except OSError:  # those connections hinder this
            self.let_go()

    def let_go(self) -> None:
        self._held.close()


def _socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
