"""The address that the dashboard is served at."""

import errno
import socket

from dedloc_kit.errors import UserError

ANY_ADDRESS = ("0.0.0.0", "::")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises UserError with what to do if it is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"'{host}' is no address to listen on ({error.strerror}); use 127.0.0.1 or 0.0.0.0") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # take the port of a server that just ended
        listener.bind(address)
        listener.listen(128)
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


def url_of(host: str, port: int) -> str:
    """The address of a page."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
