"""What somebody who only looks on believes."""

from typing import Any

import pytest
from hivemind.utils import MSGPackSerializer

from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm import observer
from dedloc_kit.swarm.averaging.entries import new_entry
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Commit, Epoch, Voter
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.observer import Finished, Observer
from dedloc_kit.swarm.p2p.adapters import KeySigner
from dedloc_kit.swarm.rounds.finished_step import receipt_of
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
    """One whose peers say what a test lets them say. Steps follow each other in one way or in another one."""

    commits: dict[tuple[str, str], list[Commit]] = {}  # noqa: RUF012
    """Of each author and way, from the first step on: signing takes long."""

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

    def commit(self, step: int, way: str = "a") -> Commit:
        """The commit of this step, on the way that leads there."""
        made = self.commits.setdefault((self.asha.peer, way), [])
        while len(made) < step:
            made.append(self.new_commit(len(made) + 1, made[-1].link if made else ("0" if way == "a" else "1") * 64))
        return made[step - 1]

    def new_commit(self, step: int, previous: str, *, signed: bool = True, **values: Any) -> Commit:
        given = {"run_id": RUN.run_id, "step": step, "session": "a1", "samples": 64, "session_samples": 64 * step}
        said = Contribution.parse({**given, "loss": 2.0, "name": "Asha", "time": 9.0, **values})
        voter, signer = Voter(self.asha.peer, 1), KeySigner(self.asha)
        instance = Instance(RUN.run_id, "", step, previous, (0, ""), ORGANIZER, ORGANIZER, Electorate({}, None))
        entry = new_entry(instance, voter, said)
        entry = entry.signed(signer) if signed else entry
        value = instance.value((entry,), (entry.samples,), "a" * 64)
        accepted = instance.accepted(voter, Epoch(1, voter.peer, "0" * 64), value)
        return Commit(value=value, accepted=(accepted,))

    def at(self, step: int, *peers: str, way: str = "a") -> None:
        """These peers hold this step."""
        for peer in peers:
            self.here[peer] = progress(step=step, round=self.commit(step, way).link, client_mode=False)

    def keeps(self, peer: str, step: int, commit: Commit | None = None) -> None:
        """The peer has the average of this step."""
        commit = commit or self.commit(step)
        after = self.commit(step).previous
        info = AverageInfo(after=after, round=commit.link, step=step, metadata=files.encode(commit), lengths=())
        for asked in (after, "") if step == 1 else (after,):
            self.answers[peer, asked] = encode(info)

    def remembers(self, peer: str, first: int, last: int, way: str = "a", run_id: str = RUN.run_id) -> None:
        """The peer has the receipts of these steps."""
        receipts = [receipt_of(self.commit(step, way), 9.0, 0.5).model_dump() for step in range(first, last + 1)]
        info = StateInfo(run_id=run_id, step=last, rounds=()).model_dump()
        self.answers[peer, "state"] = bytes(MSGPackSerializer.dumps({"info": info, "receipts": receipts}))

    def known(self, *steps: int, way: str = "a") -> dict[int, str]:
        """The links of these steps."""
        return {step: self.commit(step, way).link for step in steps}

    def told(self, *steps: int, way: str = "a") -> list[tuple[int, str]]:
        return list(self.known(*steps, way=way).items())


@pytest.fixture
def swarm(asha: Signer, warned: list[str]) -> Swarm:
    return Swarm(asha, warned)


def steps(finished: list[Finished]) -> list[tuple[int, str]]:
    return [(step.step, step.round) for step, _ in finished]


def test_steps_are_followed_one_after_the_other_with_who_gave_what(swarm: Swarm) -> None:
    swarm.at(3, ORGANIZER, "v")
    for step in (1, 2, 3):
        swarm.keeps("v", step)
    found = swarm.finished(0, {})
    assert steps(found) == swarm.told(1, 2, 3)
    assert {peer: c.samples for peer, c in found[0][1].items()} == {swarm.asha.peer: 64}
    assert (found[0][0].samples, found[0][0].loss, found[0][0].peers) == (64, 2.0, 1)
    swarm.asked.clear()
    assert swarm.finished(3, swarm.known(3)) == []
    assert swarm.asked == [], "there is nothing new to ask for"


def test_what_was_before_is_in_the_receipts_that_come_with_the_state(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.at(20, ORGANIZER, "v")
    swarm.remembers(ORGANIZER, 5, 20)
    assert steps(swarm.finished(7, swarm.known(7))) == swarm.told(*range(8, 21))
    swarm.asked.clear()
    assert swarm.finished(7, swarm.known(7)) == []
    assert swarm.asked == [], "it costs a peer a copy of its state: not again so soon"
    monkeypatch.setattr(observer, "PATIENCE_SECONDS", 0.0)
    swarm._kept_due = 0.0
    assert steps(swarm.finished(0, {}))[0] == swarm.told(5)[0], "what nobody remembers is missing"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"step": 3}, "not the average that was asked for"),
        ({"run_id": "other-0123456789abcdef"}, "of another run"),
        ({"samples": 63}, "too few samples"),
        ({"signed": False}, "not signed by"),
    ],
)
def test_a_step_that_cannot_be_so_is_ignored_and_somebody_else_is_asked(
    swarm: Swarm, values: dict[str, Any], why: str
) -> None:
    swarm.at(2, "v", ORGANIZER)
    wrong = swarm.new_commit(values.pop("step", 2), swarm.commit(1).link, **values)
    swarm.keeps("v", 2, wrong)
    swarm.here = {p: said.model_copy(update={"round": wrong.link}) for p, said in swarm.here.items()}
    assert swarm.finished(1, swarm.known(1)) == []
    assert why in swarm.warnings[0]
    swarm.at(2, "v", ORGANIZER, "w")
    swarm.keeps("w", 2)
    assert steps(swarm.finished(1, swarm.known(1))) == swarm.told(2)


def test_one_peer_cannot_tell_of_a_step_that_the_others_have_not_taken(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "DONORS_ASKED", 4)  # all of them, the liar too
    swarm.at(2, ORGANIZER, "v", "w")
    swarm.here["liar"] = progress(step=900, round="f" * 64, client_mode=False)
    swarm.remembers("liar", 3, 40)
    assert swarm.finished(2, swarm.known(2)) == []
    assert swarm.asked == []
    swarm.at(3, ORGANIZER, "v", "w", "liar")
    swarm.keeps("liar", 3, swarm.new_commit(3, swarm.commit(2).link, name="another"))
    assert steps(swarm.finished(2, swarm.known(2))) == swarm.told(3), "by its receipt"
    assert any("the swarm took another step 3" in warning for warning in swarm.warnings)


def test_while_the_organizer_is_away_those_are_believed_who_brought_its_last_step(swarm: Swarm) -> None:
    swarm.at(2, ORGANIZER, "v")
    swarm.keeps("v", 2)
    swarm.keeps("v", 3)
    assert steps(swarm.finished(1, swarm.known(1))) == swarm.told(2)
    del swarm.here[ORGANIZER]
    swarm.at(3, "v")
    assert swarm.finished(2, swarm.known(2)) == []
    swarm.at(3, swarm.asha.peer)
    assert steps(swarm.finished(2, swarm.known(2))) == swarm.told(3)


def test_only_the_organizer_is_believed_that_the_training_went_another_way(swarm: Swarm) -> None:
    known = swarm.known(*range(1, 9))
    swarm.at(10, "v", way="b")
    swarm.remembers("v", 1, 10, way="b")
    assert swarm.finished(8, known) == []
    swarm.here.clear()
    swarm._kept_due = 0.0
    swarm.at(6, ORGANIZER, "v", way="b")
    swarm.remembers(ORGANIZER, 1, 6, way="b")
    common = swarm.known(1, 2, way="b")
    assert steps(swarm.finished(8, known | common)) == swarm.told(3, 4, 5, 6, way="b")


def test_receipts_of_another_run_are_ignored(swarm: Swarm) -> None:
    swarm.at(20, ORGANIZER)
    swarm.remembers(ORGANIZER, 1, 20, run_id="other-0123456789abcdef")
    assert swarm.finished(0, {}) == []
    assert "it is of another run" in swarm.warnings[0]
