"""Installs the kit of a run's coordinator and serves a mirror of its live page; needs Python alone.

The environment says which run (DEDLOC_INVITATION) and which kit (DEDLOC_KIT, which an invitation on the Hub knows), and
may say on which port (PORT, 7860 without it).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PAUSE_SECONDS = 60.0
_PINNED = r"https?://\S+\.whl#sha256=[0-9a-f]{64}"


def kit(invitation: str) -> str:
    """Where the kit is, with its digest, which must not come from the coordinator: over plain HTTP anybody on the way
    could name another one. Raises ValueError with what to do."""
    pinned = os.environ.get("DEDLOC_KIT", "")
    if not pinned and not invitation.startswith(("http://", "https://")):
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        with urllib.request.urlopen(f"{hub}/{invitation}/resolve/main/invitation.json", timeout=30) as answer:
            told = json.load(answer)
        pinned = f"{told['url'].rstrip('/')}/wheel/{told['wheel']}"
    if not re.fullmatch(_PINNED, pinned):
        raise ValueError(
            "set the variable DEDLOC_KIT to the address ending in #sha256=... that `dedloc launch` printed"
        )
    return pinned


def install(invitation: str) -> bool:
    """Install the kit that is pinned, and no other; False if that does not work now."""
    try:
        pinned = kit(invitation)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        sys.stderr.write(f"the kit of {invitation} is not known: {error}\n")
        return False
    kit_to_serve = f"dedloc_kit[organizer] @ {pinned}"
    command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--quiet", kit_to_serve]
    return subprocess.run(command, check=False).returncode == 0


def serve(command: list[str]) -> int:
    """Run the mirror to its end, which comes with ours; returns its exit code."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    invitation = os.environ.get("DEDLOC_INVITATION", "")
    if not invitation:
        sys.stderr.write("set the variable DEDLOC_INVITATION in the Space's settings to the run's invitation\n")
        return 2
    if sys.argv[1:] == ["install"]:
        return 0 if install(invitation) else 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # how a container is asked to end
    place = ["--host", "0.0.0.0", "--port", os.environ.get("PORT", "7860"), "--folder", str(Path.home() / "mirror")]
    while True:
        install(invitation)  # the pin may have changed; while the coordinator is down, what is here will do
        if serve([sys.executable, "-m", "dedloc_kit.cli", "mirror", invitation, *place]) == 0:
            return 0
        time.sleep(PAUSE_SECONDS)  # it has said what is wrong


if __name__ == "__main__":
    sys.exit(main())
