"""The process that scores one model by standard suites for a coordinator, and ends with it.

It takes only the time that nobody else wants. `python -m dedloc_kit.coordinator.suite_process` reads its job, a line of
JSON, from standard input, and writes a report, or `{"problem": ...}`, to the file that the job names.
"""

import json
import os
import signal
import threading
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.records.record import Record


class Job(Record):
    """What to score, and how."""

    model: str
    suites: tuple[str, ...]
    language: str | None = None
    samples: int | None = None
    device: str = "cpu"
    threads: int = 0
    task_module: str | None = None
    report: str
    """The file for what was found."""
    seconds: int
    """At most."""


def main() -> None:
    """Do the job."""
    os.nice(10)
    # Not sys.stdin: processes that the harness forks would close it, and hang while a thread reads it.
    commands = os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    job = Job.model_validate_json(commands.readline())
    signal.alarm(job.seconds)  # which ends it

    def end_with_the_coordinator() -> None:
        commands.read()
        os._exit(1)

    threading.Thread(target=end_with_the_coordinator, daemon=True).start()
    from dedloc_kit.export.suites import evaluate_suites
    from dedloc_kit.learning.evaluate.session import Session
    from dedloc_kit.learning.evaluate.settings import SuiteSettings

    settings = SuiteSettings(suite=job.suites, language=job.language, samples=job.samples)
    report = Path(job.report)
    try:
        session = Session("cuda" if job.device == "cuda" else "cpu", job.threads)
        found = evaluate_suites([job.model], settings, session, task_module=job.task_module)
        report.write_text(found.model_dump_json(by_alias=True), encoding="utf-8")
    except UserError as error:
        report.write_text(json.dumps({"problem": str(error)}), encoding="utf-8")


if __name__ == "__main__":
    main()
