"""A peer's key: it names the peer in the swarm and signs what it says."""

import os
import tempfile
from pathlib import Path

from hivemind.p2p import P2P, PeerID
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import RSAPrivateKey

from dedloc_kit.errors import UserError


class Identity:
    """A peer's RSA key, kept in one file: the same key names the peer and signs its records."""

    def __init__(self, path: Path) -> None:
        """Read the key, or make one. Raises UserError if the folder cannot be written."""
        self.path = path
        try:
            if not path.exists():
                _generate(path)
            data = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{path.parent} cannot be written ({error.strerror}); choose another with --folder"
            ) from None
        try:
            self.peer_id = PeerID.from_identity(data)
            self.key = RSAPrivateKey.__new__(RSAPrivateKey)  # the constructor would generate a new key
            self.key.__setstate__({"_private_key": crypto_pb2.PrivateKey.FromString(data).data})
        except Exception:  # protobuf and cryptography raise a dozen different errors for a damaged file
            raise UserError(f"{path} is not a peer identity; move it away and a new one is made") from None


def _generate(path: Path) -> None:
    """Write a new key so that a killed process leaves either no file or a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "key"
        P2P.generate_identity(str(fresh))
        os.replace(fresh, path)
