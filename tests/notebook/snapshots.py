"""Snapshots to show in tests."""

from typing import Any

from dedloc_kit.session.snapshot import LossPoint, Phase, Progress, Snapshot


def snapshot(**changes: Any) -> Snapshot:
    """A volunteer in the middle of training, with these changes."""
    values: dict[str, Any] = {
        "phase": Phase.WORKING,
        "text": "Training: your machine computes samples for everyone's batch; then the model takes its next step.",
        "title": "sahajbert",
        "about": "A language model for Bengali",
        "facts": (
            ("you", "Rabi"),
            ("given", "48,312 samples in 2 h 5 min"),
            ("in all", "1,204,990 samples"),
            ("share", "2.3\u00a0% of what all gave"),
            ("rank", "3 of 17 volunteers"),
            ("training now", "14 volunteers"),
            ("machine", "Tesla T4, 31.4 samples/s"),
            ("memory", "2.1 GB"),
            ("network", "1.2 MB/s up, 812 kB/s down"),
        ),
        "progress": Progress(
            "step 1,205 of 125,000: 2,711 of 4,096 samples, 312 by you",
            *(2711 / 4096, 312 / 4096, 100.0),
        ),
        "losses": (LossPoint(1202, 7.25, 0), LossPoint(1203, 7.2, 12), LossPoint(1204, 7.1, 340)),
        "notes": (
            (
                "Newest step",
                "Your machine computed 340 of the 4,096 samples of step 1,204: 8.3\u00a0% of what the model learned in "
                "it. The loss is now 7.1000; lower is better.",
            ),
        ),
        "links": (
            ("live page", "http://127.0.0.1:8000"),
            ("your page", "http://127.0.0.1:8000/people/QmRabi#me"),
        ),
    }
    return Snapshot(**{**values, **changes})
