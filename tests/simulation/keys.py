"""Signatures of the simulated world: a hash over a secret that only the signer uses, and the world checks."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class SimulatedSigner:
    seed: int
    peer: str

    def sign(self, content: bytes) -> str:
        return hashlib.sha256(f"{self.seed}|{self.peer}|".encode() + content).hexdigest()


@dataclass(frozen=True)
class SimulatedVerifier:
    seed: int

    def valid(self, author: str, content: bytes, signature: str) -> bool:
        return SimulatedSigner(self.seed, author).sign(content) == signature
