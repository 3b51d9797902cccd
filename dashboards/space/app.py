"""Installs the kit from the coordinator of a run and serves a mirror of its live page; needs Python alone.

The environment says which run (DEDLOC_INVITATION), and may say on which port (PORT, 7860 without it).
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PAUSE_SECONDS = 60.0


def coordinator(invitation: str) -> str:
    """The address of the coordinator, which an invitation on the Hub names."""
    if invitation.startswith(("http://", "https://")):
        return invitation.rstrip("/")
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    with urllib.request.urlopen(f"{hub}/{invitation}/resolve/main/invitation.json", timeout=30) as answer:
        return str(json.load(answer)["url"]).rstrip("/")


def install(invitation: str) -> bool:
    """Install the coordinator's own version of the kit; False if that does not work now."""
    try:
        with urllib.request.urlopen(f"{coordinator(invitation)}/requirements.txt", timeout=30) as answer:
            kit = answer.read().decode().strip()
    except (OSError, ValueError, LookupError) as error:
        sys.stderr.write(f"{invitation} names no coordinator that answers now: {error}\n")
        return False
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-cache-dir",
        "--quiet",
        kit.replace("dedloc_kit", "dedloc_kit[organizer]", 1),
    ]
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
        install(invitation)  # the coordinator may have been upgraded; while it is down, what is here will do
        if serve([sys.executable, "-m", "dedloc_kit.cli", "dashboard", invitation, *place]) == 0:
            return 0
        time.sleep(PAUSE_SECONDS)  # it has said what is wrong


if __name__ == "__main__":
    sys.exit(main())
