"""TLS 1.3 inside a stream, for libp2p's own encryption ends at whoever forwards it.

Each end makes a certificate for this one stream, knows the other's from its greeting, and takes no other. The standard
library's TLS works on bytes in memory: nothing runs here while nobody reads or writes.
"""

import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dedloc_kit.swarm.network.service import Stream

_PIECE_BYTES = 2**16
_RECORD_BYTES = 2**14
"""The most that TLS gives at a time."""
# Whom it speaks for and to is in the greeting: neither its name says anything, nor may a wrong clock make it void.
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dedloc_kit")])
_BEGINS, _ENDS = datetime(2000, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)


class Certificate:
    """Of one end of one stream, with its key."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = x509.CertificateBuilder(_NAME, _NAME, self._key.public_key(), x509.random_serial_number())
        self._certificate = made.not_valid_before(_BEGINS).not_valid_after(_ENDS).sign(self._key, hashes.SHA256())
        self.der = self._certificate.public_bytes(serialization.Encoding.DER)
        """What the other end is shown."""

    def context(self, theirs: bytes, *, server_side: bool) -> ssl.SSLContext:
        """For a stream to whoever has the key of this certificate; raises ValueError or OSError if it is none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=theirs)
        pem, key = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        with TemporaryDirectory() as folder:  # the library reads keys from files alone; only this user can
            file = Path(folder) / "key"
            file.write_bytes(
                self._key.private_bytes(pem, key, serialization.NoEncryption()) + self._certificate.public_bytes(pem)
            )
            context.load_cert_chain(file)
        if server_side:
            context.num_tickets = 0  # no stream is ever resumed
        return context


class _Tls:
    """A stream's reader and writer in one."""

    def __init__(self, stream: Stream, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._stream = stream
        self.transport = stream.writer.transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)

    async def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                await self._more()
        await self.drain()

    async def read(self, n: int, /) -> bytes:
        """Some bytes, at most so many; none if the other end has closed the stream.

        Raises ConnectionError if anything else has, or if what comes is not as the other end sent it: whoever forwards
        it, or what there is between, says nothing of the other end.
        """
        while True:
            try:
                return self._tls.read(min(n, _RECORD_BYTES))
            except ssl.SSLWantReadError:
                self._flush()
                await self._more()
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise ConnectionResetError(f"the stream through another peer breaks: {error}") from None

    def write(self, data: bytes | memoryview) -> None:
        """It goes out with the next `drain` or `read`: a message and its length in one piece."""
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]

    async def drain(self) -> None:
        self._flush()
        await self._stream.writer.drain()

    def is_closing(self) -> bool:
        return self._stream.writer.is_closing()

    def close(self) -> None:
        with suppress(ssl.SSLError):  # it wants to wait for the other end to close as well
            self._tls.unwrap()
        self._flush()
        self._stream.close()

    async def _more(self) -> None:
        if data := await self._stream.reader.read(_PIECE_BYTES):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        if self._outgoing.pending and not self.is_closing():
            self._stream.writer.write(self._outgoing.read())


async def secured(stream: Stream, mine: Certificate, theirs: bytes, *, server_side: bool) -> Stream:
    """The stream that this one carries, when both ends have shown that they hold the keys of their certificates.

    Whoever opened the stream knows so of the other end, which knows it before it reads the first byte. Raises OSError
    or ValueError.
    """
    tls = _Tls(stream, mine.context(theirs, server_side=server_side), server_side=server_side)
    await tls.shake_hands()
    return Stream(tls, tls)
