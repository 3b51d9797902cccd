"""Snapshots to show in tests."""

from typing import Any

from dedloc_kit.session.snapshot import LossPoint, Snapshot


def snapshot(**changes: Any) -> Snapshot:
    """A volunteer in the middle of training, with these changes."""
    values: dict[str, Any] = {
        "phase": "training",
        "text": "computing with your machine",
        "run_id": "sahajbert-0123456789abcdef",
        "about": "A language model for Bengali",
        "url": "http://127.0.0.1:8000",
        "name": "Rabi",
        "anonymous": False,
        "device": "Tesla T4",
        "step": 1204,
        "total_steps": 125_000,
        "global_batch": 4096,
        "batch_samples": 2711,
        "my_batch_samples": 312,
        "session_samples": 48_312,
        "total_samples": 1_204_990,
        "share": 0.0231,
        "rank": 3,
        "contributors": 17,
        "seconds_given": 7512.0,
        "samples_per_second": 31.4,
        "peers": 14,
        "losses": (LossPoint(1202, 7.25, 0), LossPoint(1203, 7.2, 12), LossPoint(1204, 7.1, 340)),
        "memory_bytes": 2_130_000_000,
        "sent_bytes_per_second": 1.2e6,
        "received_bytes_per_second": 8.12e5,
        "warnings": (),
        "problem": None,
        "details": "",
    }
    return Snapshot(**{**values, **changes})
