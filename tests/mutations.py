"""Does a test notice when a defence is missing? `python -m tests.mutations [WORD...]`, by hand: it takes minutes.

Each mutation takes one defence out of a copy of this checkout and runs the tests that ought to fail then. With words
only those mutations whose names hold one of them. Ends with 1 if one was not caught, or cannot be applied any more.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "artifacts", "runs", "shared")
SECONDS = 600.0
GATE = "tests/swarm/network/test_gate.py -k believes_no_token"
SERVED = "tests/swarm/network/test_gate.py -k with_a_token_everything"


@dataclass(frozen=True)
class Mutation:
    """One defence less.

    :ivar file: in `dedloc_kit`
    :ivar old: a part of it that it holds once
    :ivar new: what stands there instead
    :ivar tests: arguments of pytest
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = (
    Mutation(
        "workers import from the user's folder",
        "machine/isolation.py",
        '"PYTHONSAFEPATH": "1"',
        '"PYTHONSAFEPATH": ""',
        "tests/machine/test_isolation.py -k ledger",
    ),
    Mutation(
        "an empty part of PYTHONPATH is the user's folder",
        "machine/isolation.py",
        "if part)",
        "if True)",
        "tests/machine/test_isolation.py -k purpose",
    ),
    Mutation(
        "what lies beside a task module hides libraries",
        "tasks/__init__.py",
        "sys.path.append(here)",
        "sys.path.insert(0, here)",
        "tests/machine/test_isolation.py -k task_module",
    ),
    Mutation(
        "anybody says where the page is",
        "dashboard/http/place.py",
        " and client[0] in self._behind.trusted_hosts",
        "",
        "tests/dashboard/test_tls.py -k configured",
    ),
    Mutation(
        "a proxy's path is left out",
        "dashboard/http/place.py",
        "request.scope.get('prefix', '')",
        "''",
        "tests/dashboard/test_tls.py -k configured",
    ),
    Mutation(
        "one reason for ever",
        "session/supervisor.py",
        "if repeats >= MOST_REPEATS:",
        "if repeats < 0:",
        "tests/session/test_session.py -k one_reason",
    ),
    Mutation(
        "a token may be another peer's",
        "swarm/network/gate.py",
        "if read.peer != peer:",
        "if read.peer == 'nobody':",
        GATE,
    ),
    Mutation(
        "anybody signs tokens",
        "swarm/network/gate.py",
        "if (author, read.run_id) != (self.organizer, self.run_id):",
        "if read.run_id != self.run_id:",
        GATE,
    ),
    Mutation(
        "tokens of other runs count",
        "swarm/network/gate.py",
        "if (author, read.run_id) != (self.organizer, self.run_id):",
        "if author != self.organizer:",
        GATE,
    ),
    Mutation("tokens last for ever", "swarm/network/gate.py", "if self.expired(read):", "if not read.expires:", GATE),
    Mutation(
        "strangers' streams are served",
        "swarm/network/gate.py",
        "if not self.gate.admits(peer):\n                writer.close()",
        "if not peer:\n                writer.close()",
        SERVED,
    ),
    Mutation(
        "strangers' calls are served",
        "swarm/network/gate.py",
        "self.gate.check(context.remote_id)\n            return await handler(request, context)",
        "return await handler(request, context)",
        SERVED,
    ),
    Mutation(
        "who was sent away is still admitted",
        "swarm/network/gate.py",
        "if peer in self.notice.refused:\n            return False",
        "",
        "tests/swarm/network/test_gate.py -k 'refused and not Hub'",
    ),
    Mutation(
        "signatures are not looked at",
        "swarm/network/signing.py",
        "and self._validator.validate(envelope)",
        "and bool(envelope)",
        "tests/swarm/network/test_gate.py tests/swarm/rounds/test_rounds.py tests/swarm/directory/test_tracker.py",
    ),
    Mutation(
        "anybody writes notices",
        "swarm/membership/notices.py",
        "if author(subkey) != self._gate.organizer:",
        "if not author(subkey):",
        "tests/swarm/network/test_gate.py tests/swarm/membership/test_who_may_join.py",
    ),
    Mutation(
        "a peer claims any number of samples",
        "swarm/directory/tracker.py",
        "if progress.samples > MOST_BATCHES * self._global_batch:",
        "if progress.samples < 0:",
        "tests/swarm/directory/test_tracker.py tests/swarm/directory/test_directory.py",
    ),
    Mutation(
        "a code may be forged",
        "access/codes.py",
        "if not hmac.compare_digest(",
        "if not code and not hmac.compare_digest(",
        "tests/access/test_office.py",
    ),
    Mutation(
        "a code is shown to any coordinator",
        "access/codes.py",
        "if not self.is_for(run, organizer):\n            raise explained",
        "if not self.run:\n            raise explained",
        "tests/access/test_office.py",
    ),
    Mutation(
        "an invitation's configuration may be edited",
        "records.py",
        "if run.run_id != self.run_id:",
        "if not run.run_id:",
        "tests/test_records.py",
    ),
    Mutation(
        "names may hold control characters",
        "records.py",
        "PeerText = Annotated[str, Field(max_length=64, pattern=PLAIN_TEXT)]",
        "PeerText = Annotated[str, Field(max_length=64)]",
        "tests/test_records.py",
    ),
    Mutation(
        "a body may be of any length",
        "dashboard/http/limits.py",
        '> MOST_SENT:',
        '> 10**12:',
        "tests/dashboard/http/test_limits.py",
    ),
)  # fmt: skip


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="dedloc-mutations-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(CHECKOUT, copy, ignore=LEFT_OUT)
        for mutation in chosen:
            verdict = judge(mutation, copy)
            missed += verdict != "caught"
            print(f"{verdict:28}{mutation.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} were caught")
    return 1 if missed else 0


def judge(mutation: Mutation, copy: Path) -> str:
    """What becomes of one mutation; the copy is as before afterwards."""
    path = copy / "dedloc_kit" / mutation.file
    whole = path.read_text() if path.exists() else ""
    if whole.count(mutation.old) != 1:
        return "NO SUCH PLACE"
    if unmutated(mutation.tests, copy) != 0:
        return "TESTS FAIL WITHOUT IT"
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        return {0: "NOT CAUGHT", 1: "caught"}.get(failed := run(mutation.tests, copy), f"PYTEST ENDED WITH {failed}")
    finally:
        path.write_text(whole)


@cache
def unmutated(tests: str, copy: Path) -> int:
    """pytest's exit code where nothing is mutated."""
    return run(tests, copy)


def run(tests: str, copy: Path) -> int:
    """pytest's exit code: 0 if all pass, 1 if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    return subprocess.run(
        [*command, *shlex.split(tests)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,  # nobody is there whom a test could ask
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
