"""A run as it looks after some days: a ledger with people, teams, visits and troubles, and the events of now."""

import hashlib
import random
import time
from pathlib import Path

import pytest

from dedloc_kit.config.loading import parse_run
from dedloc_kit.events import Peers, PeerSeen
from dedloc_kit.ledger import Conviction, Ledger, SuiteScore
from dedloc_kit.records.evaluation import Continuation, Drawing, Evaluation, FillMask, Neighbour, Neighbours, Picture
from dedloc_kit.records.orders import Announcement, Checks
from dedloc_kit.records.steps import Contribution, GlobalStep, LeftOut
from tests.pictures import CLASSES, draw

RUN = parse_run(
    {
        "name": "bangla-albert",
        "about": "A language model for Bengali, trained from nothing by everyone who has a GPU to spare.",
        "global_batch": 4096,
        "task": {"name": "albert"},
        "data": {
            "train": [{"dataset": "wikimedia/wikipedia", "subset": "20231101.bn"}],
            "evaluation": {"dataset": "wikimedia/wikipedia", "subset": "20231101.bn"},
        },
        "optimizer": {"total_steps": 20_000, "warmup_steps": 100},
    }
)
MARKUP = "</script><img src=x onerror=alert(1)>"
TURNED = "\u202eturned \u200b\u200dround"
LONG = "W" * 64
NAMES = ("Asha", "Rabi", "Nasrin Sultana", "tanvir_ahmed", MARKUP, TURNED, LONG, "\u200b", "محمد علي", "Łukasz Żółć")
TEAMS = ("Bengali AI", "Colab crew", "")
DEVICES = ("Tesla T4", "NVIDIA GeForce RTX 3090", "Apple M2")
PEOPLE, STEPS = 30, 60
_SECONDS = 5400.0
"""From one global step to the next."""
_SENTENCES = (
    ("The boat crossed the ", "river", " before the monsoon came.", ("the", "road", "river")),
    ("Dhaka is the capital of ", "Bangladesh", " and its largest city.", (",", "India", "Bangladesh")),
    ("She picked up the ", "book", " and began to read aloud.", ("of", "phone", "phone")),
)
CAPTIONS = ("stripes of two colours", "জলের উপর নৌকা", f"كلمة {MARKUP}", f"{TURNED} {LONG}")


def peer_id(number: int) -> str:
    """As long as a real one."""
    return "Qm" + hashlib.sha256(b"%d" % number).hexdigest()[:44]


def seen(number: int, step: int = STEPS, samples: int = 0) -> PeerSeen:
    """A volunteer as the coordinator sees it."""
    return PeerSeen(
        peer=peer_id(number),
        name=NAMES[number] if number < len(NAMES) else f"volunteer {number}",
        team=TEAMS[number % len(TEAMS)],
        device=DEVICES[number % len(DEVICES)],
        step=step,
        samples=samples,
        samples_per_second=40.0 / (number + 1),
        upload=4e6 / (number + 1),
        follower=False,
        client_mode=number % 2 == 0,
    )


LEFT_OUT = LeftOut(
    count=40,
    some={peer_id(0): "fell silent", peer_id(900): "did not come"},
)
CONVICTIONS = (
    Conviction(peer_id(4), time.time() - 3 * 86_400, MARKUP, "its piece is not the gradient of its work (step 41)"),
    Conviction(peer_id(901), time.time() - 4 * 86_400, "", f"it does not show its work {MARKUP}"),
    Conviction(peer_id(6), time.time() - 5 * 86_400, LONG, "what compression left over is not that of its last one"),
)
"""The last of them was lifted."""
COORDINATOR = PeerSeen(
    peer=peer_id(1000),
    name="organizer",
    device="cpu",
    step=STEPS,
    samples=0,
    samples_per_second=0.0,
    follower=True,
    client_mode=False,
)
EVERYONE = Peers(
    peers=(COORDINATOR, seen(11, step=STEPS - 1), *(seen(number, samples=900 // (number + 1)) for number in range(10))),
    announcement=Announcement(text="Tomorrow at 18:00 UTC we double the batch.", time=time.time() - 3000),
    checks=Checks(passed=112, convicted=3, share=0.02),
    countries={"BD": 5, "IN": 2, "DE": 1, "MQ": 1, "AQ": 1},
    countries_title="An Atlas of Addresses",
)


def write_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the whole story."""
    chance = random.Random(4)
    begin = time.time() - STEPS * _SECONDS
    now = begin
    monkeypatch.setattr("dedloc_kit.ledger.ledger.ABSENCE_SECONDS", 1.5 * _SECONDS)  # we look once per global step
    ledger = Ledger(path, clock=lambda: now)
    given = [0] * PEOPLE
    for step in range(STEPS + 1):
        if step % 20 == 0:
            ledger.record_evaluation(step, evaluation(step), now)
        if step == STEPS:
            break
        now = begin + (step + 1) * _SECONDS
        if step % 3 == 0:
            present = [number for number in range(PEOPLE) if step == 0 or chance.random() < 1 / (1 + number / 4)]
        ledger.record_presence(seen(number) for number in present)
        record_step(ledger, step + 1, now, present, given)
    now = time.time()
    ledger.record_presence(EVERYONE.peers)
    ledger.record_trouble("failed", "2 of 9 peers left in the middle; it was held again", step=STEPS - 3)
    ledger.record_trouble("rejected", f"a record of an unknown key, which calls itself {MARKUP}")
    ledger.record_suites(
        SuiteScore(metric, model, step, now, 900, mean, 0.015)
        for metric, model, step, mean in (
            ("accuracy of belebele_ben_Beng", "", 20, 0.27),
            ("accuracy of belebele_ben_Beng", "", 40, 0.29),
            ("accuracy of belebele_ben_Beng", MARKUP, 0, 0.5),
            ("perplexity per word of near", "", 20, 41.5),
        )
    )
    ledger.record_convictions(CONVICTIONS)
    ledger.record_convictions(CONVICTIONS[:2])
    ledger.close()


def record_step(ledger: Ledger, step: int, now: float, present: list[int], given: list[int]) -> GlobalStep:
    """One global step to which those present gave; `given` has what each gave in all, and is brought up to date."""
    done = GlobalStep(
        step=step,
        round=f"{step:x}",
        time=now,
        samples=RUN.global_batch,
        loss=4 + 6 * 0.96**step + 0.1 * (step % 3),
        peers=len(present) + 1,
        seconds=4.0,
        compute=20.0 + step % 5,
        gather=0.6,
        average=3.0 + step % 2,
        apply=0.4,
        left_out=LEFT_OUT if step == STEPS - 2 else None,
    )
    contributions = {}
    for number in present:
        samples = 1 + RUN.global_batch // (number + 2)
        given[number] += samples
        contributions[peer_id(number)] = Contribution(
            run_id=RUN.run_id,
            step=step,
            session=f"{number:x}",
            samples=samples,
            session_samples=given[number],
            loss=4 + 6 * 0.96**step + 0.3 * ((step + number) % 4),
            name=seen(number).name,
            time=now,
        )
    ledger.record_step(done, contributions)
    return done


def evaluation(step: int) -> Evaluation:
    """What the model of that step can do: more and more."""
    part = step / STEPS
    samples = tuple(
        FillMask(before=before, guess=guesses[min(2, round(2 * part))], truth=truth, after=after)
        for before, truth, after, guesses in _SENTENCES
    )
    metrics = {"masked accuracy": 0.5 * part, "sentence order accuracy": 0.5 + 0.3 * part}
    return Evaluation(loss=4.2 + 6 * 0.96**step, metrics=metrics, samples=samples)


def continued_texts(step: int) -> Evaluation:
    """What a model that writes can do at that step: it goes on with two texts, better and better."""
    samples = (
        Continuation(before="The boat crossed", written=f" the river {step} times", truth=" the sea."),
        Continuation(before="আমি ভাত", written=f" {MARKUP} {step}", truth=" খাই।"),
    )
    return Evaluation(
        loss=3.0, metrics={"perplexity": 1500.0 - step, "bits per byte": 2.5 - step / 100}, samples=samples
    )


def sample_picture(kind: int, number: int) -> Picture:
    """One of a kind of striped pictures."""
    return Picture(pixels=draw(CLASSES * number + kind).tobytes())


def similar_pictures(step: int) -> Evaluation:
    """What a model of pictures can do at that step: more and more."""
    kinds = ("rings", "stripes", MARKUP)
    found = []
    for kind, label in enumerate(kinds):
        near = []
        for number in (1, 2, 3):
            other = kind if number <= step / 20 else (kind + 1) % len(kinds)
            digest = sample_picture(other, number + step % 3).digest
            near.append(Neighbour(picture=digest, label=kinds[other], similarity=1 - number / 4))
        found.append(Neighbours(picture=sample_picture(kind, 0).digest, label=label, nearest=tuple(near)))
    pictures = tuple(sample_picture(kind, number) for kind in range(len(kinds)) for number in range(6))
    return Evaluation(loss=3.0, metrics={"k-NN accuracy": 0.2 + step / 100}, samples=tuple(found), pictures=pictures)


def drawn_pictures(step: int) -> Evaluation:
    """What a model that draws can do at that step: what it draws turns into the real pictures, one after the other."""
    real = [sample_picture(kind, 0) for kind in range(len(CAPTIONS))]
    drawn = [
        real[place] if 20 * (place + 1) <= step else sample_picture(place, 1 + step // 20)
        for place in range(len(CAPTIONS))
    ]
    samples = tuple(
        Drawing(caption=caption, picture=now.digest, real=then.digest)
        for caption, now, then in zip(CAPTIONS, drawn, real, strict=True)
    )
    metrics = {
        "code loss without caption": 5.0 - step / 30,
        "code loss with another caption": 5.0,
        "true caption of 16": 0.06 + step / 100,
    }
    return Evaluation(loss=5.0 - step / 20, metrics=metrics, samples=samples, pictures=(*drawn, *real))
