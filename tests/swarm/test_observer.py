"""What somebody who only looks on believes."""

from typing import Any

import pytest
from hivemind.utils import MSGPackSerializer

from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm import observer
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.observer import Finished, Observer
from dedloc_kit.swarm.transfer.contents import AverageInfo
from dedloc_kit.swarm.transfer.protocol import Header, Request
from tests.identities import an_identity
from tests.swarm.harness import belief, progress
from tests.tiny import tiny_run

RUN = tiny_run()
ORGANIZER = "organizer"


@pytest.fixture(scope="module")
def asha(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(an_identity(tmp_path_factory.mktemp("asha") / "identity.key"))


class Swarm(Observer):
    """One whose peers say what a test lets them say."""

    def __init__(self, asha: Signer, warned: list[str]) -> None:
        self.warnings = warned
        self.answers: dict[tuple[str, str], bytes] = {}
        self.asked: list[str] = []
        self.here: dict[str, Progress] = {}
        super().__init__(RUN, None, asha, None, belief("me", ORGANIZER))  # type: ignore[arg-type]
        self.asha = asha

    def peers(self) -> dict[str, Progress]:
        return self.here

    def _ask(self, donor: str, request: Request) -> Header | None:
        self.asked.append(donor)
        metadata = self.answers.get((donor, request.after if request.what == "average" else "state"))
        return Header(answer="nothing") if metadata is None else Header(answer="here", total=1, metadata=metadata)

    def at(self, step: int, *peers: str, way: str = "a") -> None:
        """These peers hold this step."""
        for peer in peers:
            self.here[peer] = progress(step=step, round=f"{way}{step:x}", client_mode=False)

    def signed(self, step: int, **values: Any) -> bytes:
        given = {"run_id": RUN.run_id, "step": step, "session": "a1", "samples": 64, "session_samples": 64 * step}
        return self.asha.sign(Contribution.parse({**given, "loss": 2.0, "name": "Asha", "time": 9.0, **values}))

    def keeps(self, peer: str, step: int, *signed: bytes, way: str = "a") -> None:
        """The peer has the average of this step."""
        after = f"{way}{step - 1:x}" if step > 1 else ""
        metadata = bytes(MSGPackSerializer.dumps(list(signed)))
        info = AverageInfo(after=after, round=f"{way}{step:x}", step=step, metadata=metadata, lengths=())
        self.answers[peer, after] = encode(info)

    def remembers(self, peer: str, first: int, last: int, way: str = "a", run_id: str = RUN.run_id) -> None:
        """The peer has the receipts of these steps."""
        receipts = [
            Receipt(step=step, round=f"{way}{step:x}", time=9.0, seconds=0.5, signed=(self.signed(step),)).model_dump()
            for step in range(first, last + 1)
        ]
        info = StateInfo(run_id=run_id, step=last, rounds=()).model_dump()
        self.answers[peer, "state"] = bytes(MSGPackSerializer.dumps({"info": info, "receipts": receipts}))


@pytest.fixture
def swarm(asha: Signer, warned: list[str]) -> Swarm:
    return Swarm(asha, warned)


def steps(finished: list[Finished]) -> list[tuple[int, str]]:
    return [(step.step, step.round) for step, _ in finished]


def test_steps_are_followed_one_after_the_other_with_who_gave_what(swarm: Swarm) -> None:
    swarm.at(3, ORGANIZER, "v")
    for step in (1, 2, 3):
        swarm.keeps("v", step, swarm.signed(step))
    found = swarm.finished(0, {})
    assert steps(found) == [(1, "a1"), (2, "a2"), (3, "a3")]
    assert {peer: c.samples for peer, c in found[0][1].items()} == {swarm.asha.peer: 64}
    assert (found[0][0].samples, found[0][0].loss, found[0][0].peers) == (64, 2.0, 1)
    swarm.asked.clear()
    assert swarm.finished(3, {3: "a3"}) == []
    assert swarm.asked == [], "there is nothing new to ask for"


def test_what_was_before_is_in_the_receipts_that_come_with_the_state(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.at(20, ORGANIZER, "v")
    swarm.remembers(ORGANIZER, 5, 20)
    assert steps(swarm.finished(7, {7: "a7"})) == [(step, f"a{step:x}") for step in range(8, 21)]
    swarm.asked.clear()
    assert swarm.finished(7, {7: "a7"}) == []
    assert swarm.asked == [], "it costs a peer a copy of its state: not again so soon"
    monkeypatch.setattr(observer, "PATIENCE_SECONDS", 0.0)
    swarm._kept_due = 0.0
    assert steps(swarm.finished(0, {}))[0] == (5, "a5"), "what nobody remembers is missing"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"step": 3}, "of another step"),
        ({"run_id": "other-0123456789abcdef"}, "of another run"),
        ({"samples": 63}, "too few samples"),
    ],
)
def test_a_step_that_cannot_be_so_is_ignored_and_somebody_else_is_asked(
    swarm: Swarm, values: dict[str, Any], why: str
) -> None:
    swarm.at(2, "v", ORGANIZER)
    swarm.keeps("v", 2, swarm.signed(2, **values) if values.get("step") is None else swarm.signed(3))
    assert swarm.finished(1, {1: "a1"}) == []
    assert why in swarm.warnings[0]
    swarm.at(2, "w")
    swarm.keeps("w", 2, swarm.signed(2))
    assert steps(swarm.finished(1, {1: "a1"})) == [(2, "a2")]


def test_a_contribution_that_its_author_has_not_signed_is_no_contribution(swarm: Swarm) -> None:
    swarm.at(2, "v", ORGANIZER)
    forged = bytearray(swarm.signed(2))
    forged[-40] ^= 1
    swarm.keeps("v", 2, bytes(forged))
    assert swarm.finished(1, {1: "a1"}) == []
    assert "is ignored: Contribution" in swarm.warnings[0]


def test_one_peer_cannot_tell_of_a_step_that_the_others_have_not_taken(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "DONORS_ASKED", 4)  # all of them, the liar too
    swarm.at(2, ORGANIZER, "v", "w")
    swarm.at(900, "liar")
    swarm.remembers("liar", 3, 40)
    assert swarm.finished(2, {2: "a2"}) == []
    assert swarm.asked == []
    swarm.at(3, ORGANIZER, "v", "w", "liar")
    swarm.answers["liar", "a2"] = encode(
        AverageInfo(after="a2", round="b3", step=3, metadata=MSGPackSerializer.dumps([swarm.signed(3)]), lengths=())
    )
    assert steps(swarm.finished(2, {2: "a2"})) == [(3, "a3")]
    assert any("the swarm took another step 3" in warning for warning in swarm.warnings)


def test_while_the_organizer_is_away_those_are_believed_who_brought_its_last_step(swarm: Swarm) -> None:
    swarm.at(2, ORGANIZER, "v")
    swarm.keeps("v", 2, swarm.signed(2))
    swarm.keeps("v", 3, swarm.signed(3))
    assert steps(swarm.finished(1, {1: "a1"})) == [(2, "a2")]
    del swarm.here[ORGANIZER]
    swarm.at(3, "v")
    assert swarm.finished(2, {2: "a2"}) == []
    swarm.at(3, swarm.asha.peer)
    assert steps(swarm.finished(2, {2: "a2"})) == [(3, "a3")]


def test_only_the_organizer_is_believed_that_the_training_went_another_way(swarm: Swarm) -> None:
    known = {step: f"a{step:x}" for step in range(1, 9)}
    swarm.at(10, "v", way="b")
    swarm.remembers("v", 1, 10, way="b")
    assert swarm.finished(8, known) == []
    swarm.here.clear()
    swarm._kept_due = 0.0
    swarm.at(6, ORGANIZER, "v", way="b")
    swarm.remembers(ORGANIZER, 1, 6, way="b")
    common = {1: "b1", 2: "b2"}
    assert steps(swarm.finished(8, known | common)) == [(step, f"b{step:x}") for step in range(3, 7)]


def test_receipts_of_another_run_are_ignored(swarm: Swarm) -> None:
    swarm.at(20, ORGANIZER)
    swarm.remembers(ORGANIZER, 1, 20, run_id="other-0123456789abcdef")
    assert swarm.finished(0, {}) == []
    assert "it is of another run" in swarm.warnings[0]
