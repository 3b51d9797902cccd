"""What taking part costs this machine: memory of the worker's processes, and what goes through the network."""

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Reading:
    memory_bytes: int = 0
    """Of the worker and all its processes; memory that they share counts once."""
    sent_bytes_per_second: float = 0.0
    """Of the whole machine, to others: what one process sends, systems do not tell."""
    received_bytes_per_second: float = 0.0


class Meters:
    """Reads them again and again; rates are those since the last reading."""

    def __init__(self) -> None:
        self._before = _traffic()

    def read(self, pid: int | None) -> Reading:
        """`pid` is the worker's; none while there is no worker."""
        now, sent, received = _traffic()
        before, sent_before, received_before = self._before
        self._before = now, sent, received
        seconds = max(1e-3, now - before)
        return Reading(
            _memory(pid) if pid is not None else 0,
            max(0, sent - sent_before) / seconds,
            max(0, received - received_before) / seconds,
        )


def _traffic() -> tuple[float, int, int]:
    try:
        counters = [c for name, c in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")]
    except OSError:  # some containers hide them
        counters = []
    return time.monotonic(), sum(c.bytes_sent for c in counters), sum(c.bytes_recv for c in counters)


def _memory(pid: int) -> int:
    total = 0
    try:
        worker = psutil.Process(pid)
        processes = [worker, *worker.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)  # Linux knows pss: shared pages, divided by who shares them
        except psutil.Error:  # it has just ended, or is another user's
            continue
    return total
