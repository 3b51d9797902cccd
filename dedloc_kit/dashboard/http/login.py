"""Who may steer the run: whoever opened a link that only the organizer's terminal shows.

The link and the cookie that it is exchanged for are the time of their end, signed with a key that never leaves the
coordinator's folder. Nothing has to be remembered, so both outlive a restart; a new key (remove the file) ends all.
"""

import hmac
import os
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.machine.private import make_private

KEY_FILE = "organizer.key"
LINK_SECONDS = 24 * 3600.0
COOKIE_SECONDS = 7 * 24 * 3600.0
WRONG_PER_MINUTE = 10
"""Wrong keys from one address; further ones are answered with "too many". A right one always opens: behind a proxy
all come from the same address, and nobody shall lock the organizer out. Guessing is hopeless at any speed."""
_KEY_BYTES = 32
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MAX_ADDRESSES = 10_000


class Keys:
    """Signs links and cookies with the secret in one coordinator's folder."""

    def __init__(self, folder: Path) -> None:
        """Makes the secret if there is none yet. Raises UserError if it cannot be written or read."""
        self._secret = _secret(folder / KEY_FILE)

    def link(self, url: str) -> str:
        """An address at the dashboard's `url` that logs whoever opens it in as the organizer, for a day."""
        return f"{url}/organizer/login?key={self._signed('link', LINK_SECONDS)}"

    def cookie(self) -> str:
        """What a browser shows from then on."""
        return self._signed("cookie", COOKIE_SECONDS)

    def opens(self, key: str) -> bool:
        """Whether this is the key of a link that has not expired."""
        return self._checked("link", key) > time.time()

    def knows(self, cookie: str) -> bool:
        """Whether this is a cookie of ours that has not expired."""
        return self._checked("cookie", cookie) > time.time()

    def _signed(self, what: str, seconds: float) -> str:
        until = str(int(time.time() + seconds))
        return f"{until}.{self._signature(what, until)}"

    def _checked(self, what: str, text: str) -> float:
        """When it ends; 0 if it is not ours."""
        until, _, signature = text.partition(".")
        # As bytes: compare_digest refuses text that is not ASCII.
        right = hmac.compare_digest(signature.encode(errors="replace"), self._signature(what, until).encode())
        return float(until) if right else 0.0

    def _signature(self, what: str, until: str) -> str:
        return hmac.digest(self._secret, f"{what} {until}".encode(errors="replace"), "sha256").hex()


class Attempts:
    """Wrong keys and forged cookies, by the address that they came from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: dict[str, deque[float]] = {}

    def too_many(self, address: str) -> bool:
        """Count one more; whether that is too many within a minute."""
        now = time.monotonic()
        with self._lock:
            if len(self._wrong) >= _MAX_ADDRESSES:
                self._wrong = {known: times for known, times in self._wrong.items() if times[-1] > now - 60.0}
            if len(self._wrong) >= _MAX_ADDRESSES and address not in self._wrong:
                return True
            times = self._wrong.setdefault(address, deque(maxlen=WRONG_PER_MINUTE + 1))
            times.append(now)
            return len(times) > WRONG_PER_MINUTE and times[0] > now - 60.0


def _secret(path: Path) -> bytes:
    try:
        make_private(path.parent)
        with suppress(FileExistsError), os.fdopen(os.open(path, _NEW, 0o600), "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES))
        path.chmod(0o600)
        secret = bytes.fromhex(path.read_text(encoding="ascii"))
    except OSError as error:
        raise UserError(f"{path} cannot be used ({error.strerror}); check the permissions of its folder") from None
    except ValueError:
        secret = b""
    if len(secret) != _KEY_BYTES:
        raise UserError(f"{path} is damaged; remove it, and a new one is made")
    return secret
