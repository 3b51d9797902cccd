"""A server on loopback that gives what a test tells it to, byte for byte."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[str], Iterable[bytes]]
"""What is sent for a path, in pieces."""


class Server:
    """Answers each request in a thread of its own."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked = answer, list[str]()
        self.over = threading.Event()
        """Set at the end, for those who wait."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._give, args=(connection,), daemon=True).start()

    def _give(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536) or b"\r\n\r\n"
            if not head.startswith(b"GET "):
                return  # it has thought better of it
            path = head.split()[1].decode()
            self.asked.append(path)
            for piece in self.answer(path):
                connection.sendall(piece)

    def close(self) -> None:
        self.over.set()
        # What waits for a connection in another thread is not woken by the closing of its socket alone.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.close()


def file(content: bytes) -> list[bytes]:
    """As an honest server gives it."""
    return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content), content]


def status(code: int, *headers: str) -> list[bytes]:
    """An answer without content."""
    return ["".join(f"{line}\r\n" for line in (f"HTTP/1.1 {code} Told", "Content-Length: 0", *headers, "")).encode()]


def files(found: Callable[[str], bytes | None]) -> Callable[[str], list[bytes]]:
    """Those that this gives for the last part of a path."""

    def answer(path: str) -> list[bytes]:
        content = found(path.replace("%2F", "/").rpartition("/")[2])
        return status(404) if content is None else file(content)

    return answer
