"""The address that the dashboard is served at, and how."""

import errno
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from dedloc_kit.dashboard.http.connections import AT_ONCE, Listener
from dedloc_kit.errors import UserError

ANY_ADDRESS = ("0.0.0.0", "::")


def listen(host: str, port: int) -> Listener:
    """A socket that listens there; port 0 takes a free one. Raises UserError with what to do if it is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = Listener(family, kind, protocol)
    except OSError as error:
        raise UserError(f"'{host}' is no address to listen on ({error.strerror}); use 127.0.0.1 or 0.0.0.0") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # take the port of a server that just ended
        listener.bind(address)
        listener.listen(AT_ONCE)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another with --port, such as --port {port + 1}") from None
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose a port above 1023 and one of this "
            "machine's addresses, or 0.0.0.0"
        ) from None


def own_address() -> str:
    """The address of this machine in its network: the one from which it would send to the world."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@dataclass(frozen=True)
class Certificate:
    """What a page shows that is served over TLS without a proxy before it.

    Raises UserError if the files are not a certificate, with those above it if there are any, and its key.
    """

    chain: Path
    key: Path

    def __post_init__(self) -> None:
        files = f"the certificate {self.chain} and the key {self.key}"
        try:
            # A key with a passphrase would ask for it, with nobody there.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=lambda: "")
        except ssl.SSLError as error:
            raise UserError(
                f"{files} do not serve TLS ({error.reason or error}); give the two PEM files that belong together, the "
                "key without a passphrase, as tls_cert and tls_key"
            ) from None
        except OSError as error:
            raise UserError(f"{files} cannot both be read ({error.strerror}); check tls_cert and tls_key") from None


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    """The address of a page."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
