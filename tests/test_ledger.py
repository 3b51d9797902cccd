import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.events import PeerSeen
from dedloc_kit.ledger import Contributor, Conviction, EvaluationPoint, Ledger, SuiteScore, schema
from dedloc_kit.ledger.files import Newest, newest
from dedloc_kit.ledger.ledger import MAX_STEP_SECONDS
from dedloc_kit.ledger.schema import MAX_SAMPLES
from dedloc_kit.records.evaluation import Evaluation, Neighbour, Neighbours, Picture
from dedloc_kit.records.steps import Carried, GlobalStep, LeftOut
from tests.ledgers import GAP, NOON, a_step, given


class Clock:
    """The coordinator's."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def totals(ledger: Ledger) -> dict[str, int]:
    found = {contributor.peer: contributor.samples for contributor in ledger.contributors()}
    assert ledger.samples_total() == sum(found.values())
    return found


def test_a_new_ledger_is_empty(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.last_step() == 0
    assert ledger.samples_total() == 0
    assert ledger.steps() == []
    assert ledger.evaluations() == []
    assert ledger.first_and_last_evaluation() is None
    assert ledger.samples_on_the_way(5) == []
    assert ledger.pictures() == set()
    assert ledger.contributors() == []
    assert ledger.contributions_of(1) == {}


def test_what_was_recorded_is_there_after_opening_again(path: Path) -> None:
    now = Clock()
    ledger = Ledger(path, clock=now)
    ledger.record_step(a_step(1), {"p": given(1, 40, 40), "q": given(1, 24, 24, name="Bo")})
    now.time += 1.0
    ledger.record_step(a_step(2, loss=None), {"p": given(2, 64, 104)})
    ledger.record_evaluation(1, Evaluation(loss=1.75), 6.0)
    ledger.record_evaluation(2, Evaluation(loss=1.5, metrics={"masked accuracy": 0.25}, samples=(GAP,)), 7.0)
    ledger.close()
    ledger = Ledger(path)
    assert ledger.last_step() == 2
    assert ledger.steps() == [a_step(1), a_step(2, loss=None)]
    assert ledger.evaluations(after=1) == [EvaluationPoint(2, 1.5, 7.0, {"masked accuracy": 0.25})]
    assert ledger.samples_on_the_way(5) == [(2, [GAP])]
    assert ledger.contributions_of(1) == {"p": 40, "q": 24}
    first, second = ledger.contributors()
    assert (first.peer, first.name, first.samples, first.steps) == ("p", "Asha", 104, 2)
    assert (first.first_seen, first.last_seen) == (NOON, NOON + 1.0)
    assert (second.peer, second.name, second.samples, second.steps) == ("q", "Bo", 24, 1)


def test_samples_of_before_there_were_kinds_are_sentences_with_a_gap(path: Path) -> None:
    ledger = Ledger(path)
    unmarked = json.dumps([GAP.model_dump(exclude={"kind"})])
    ledger._connection.execute("INSERT INTO evaluations VALUES (1, 2.0, 7.0, '{}', ?, '')", (unmarked,))
    assert ledger.samples_on_the_way(5) == [(1, [GAP])]


def test_a_picture_is_kept_once_however_many_evaluations_show_it(path: Path) -> None:
    pictures = [Picture(pixels=bytes([shade] * 12)) for shade in range(3)]
    digests = [picture.digest for picture in pictures]
    ledger = Ledger(path)
    for step in range(3):
        near = Neighbour(picture=digests[2 - step % 2], label="cat", similarity=0.5)
        sample = Neighbours(picture=digests[0], label="cat", nearest=(near,))
        shown = (pictures[0], pictures[2 - step % 2])
        ledger.record_evaluation(step, Evaluation(loss=2.0, samples=(sample,), pictures=shown), 7.0)
    (last,) = ledger.samples_on_the_way(5)[-1][1]
    assert last == sample
    assert ledger.pictures() == set(digests)
    assert ledger.picture(digests[1]) == pictures[1]
    assert ledger.picture("0" * 64) is None
    assert ledger._rows("SELECT count(*) FROM pictures") == [(3,)]


def test_the_totals_agree_with_the_global_steps_when_nothing_was_missed(path: Path) -> None:
    ledger = Ledger(path)
    for step in range(1, 11):
        ledger.record_step(a_step(step), {"p": given(step, 40, 40 * step), "q": given(step, 24, 24 * step)})
    assert totals(ledger) == {"p": 400, "q": 240}
    assert ledger.samples_total() == sum(step.samples for step in ledger.steps())


def test_a_step_recorded_twice_counts_once(path: Path) -> None:
    ledger = Ledger(path)
    for _ in range(2):
        ledger.record_step(a_step(1), {"p": given(1, 64, 64)})
        ledger.record_contribution("p", given(1, 64, 64))
    assert ledger.steps() == [a_step(1)]
    assert totals(ledger) == {"p": 64}
    assert ledger.contributors()[0].steps == 1


def test_contributions_come_in_any_order_and_any_number_of_times(path: Path) -> None:
    deliveries = [(peer, given(step, 10, 10 * step)) for peer in ("p", "q") for step in range(1, 21)] * 3
    random.Random(7).shuffle(deliveries)
    ledger = Ledger(path)
    for peer, contribution in deliveries:
        ledger.record_contribution(peer, contribution)
    assert totals(ledger) == {"p": 200, "q": 200}
    assert [contributor.steps for contributor in ledger.contributors()] == [20, 20]


def test_a_missed_contribution_still_counts_in_the_total(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_contribution("p", given(1, 10, 10))
    ledger.record_contribution("p", given(4, 10, 40))
    assert totals(ledger) == {"p": 40}


def test_the_sessions_of_a_peer_add_up_under_its_newest_name(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_contribution("p", given(5, 10, 10, session="b2", name="Asha at work"))
    ledger.record_contribution("p", given(2, 10, 20, session="a1", name="Asha"))
    assert totals(ledger) == {"p": 30}
    assert ledger.contributors()[0].name == "Asha at work"


def test_a_follower_that_gives_nothing_is_no_contributor(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_step(a_step(1), {"c": given(1, 0, 0), "p": given(1, 64, 64)})
    assert totals(ledger) == {"p": 64}


def test_enormous_claims_end_at_the_largest_number_that_a_page_can_show(path: Path) -> None:
    ledger = Ledger(path)
    claims = {f"p{number}": given(1, 2**53, 2**53, session=f"{number:x}") for number in range(1100)}
    ledger.record_step(a_step(1), claims)
    ledger.record_step(a_step(2), {"p1": given(2, 2**53, 2**53, session="b2"), "q": given(2, 1, 1)})
    assert ledger.samples_total() == 2**53
    assert {contributor.samples for contributor in ledger.contributors()} == {1, 2**53}


def test_a_count_that_contradicts_itself_is_no_error(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_contribution("p", given(1, 10, 10))
    ledger.record_contribution("p", given(2, 10, 0))
    assert totals(ledger) == {"p": 20}


def test_a_counter_is_not_believed_as_to_steps_whose_members_have_told(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_step(a_step(1), {"p": given(1, 64, 10**9)})
    ledger.record_step(a_step(2), {"p": given(2, 60, 10**9 + 60), "q": given(2, 4, 4)})
    ledger.record_step(a_step(3), {"q": given(3, 64, 68)})
    ledger.record_step(a_step(4), {"p": given(4, 34, 10**10), "q": given(4, 30, 98)})
    assert totals(ledger) == {"p": 64 + 60 + 34, "q": 98}
    assert ledger.samples_total() == sum(step.samples for step in ledger.steps())
    ledger.record_step(a_step(6), {"p": given(6, 14, 10**10 + 64), "q": given(6, 50, 10**10)})
    assert totals(ledger) == {"p": 64 + 60 + 34 + 64, "q": 10**10}, "nobody told of step 5"


def test_a_contribution_to_a_step_is_that_of_its_members(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_step(a_step(1), {"p": given(1, 64, 64)})
    ledger.record_contribution("late", given(1, 102, 102))
    assert totals(ledger) == {"p": 64}
    ledger.record_step(a_step(2), {"p": given(2, 40, 104), "late": given(2, 24, 126)})
    assert totals(ledger) == {"p": 104, "late": 24}


def test_a_gap_is_filled_with_what_peers_say_whose_companions_have_told_of_them(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.record_step(a_step(1), {"p": given(1, 64, 64)})
        ledger.record_step(a_step(4), {"q": given(4, 64, 64)})
        claims = {"p": given(3, 10, 74), "stranger": given(2, 64, 64)}
        ledger.fill_gaps(claims)
        assert totals(ledger) == {"p": 74, "q": 64}
        ledger.record_step(a_step(5), {"stranger": given(5, 64, 128)})
        ledger.fill_gaps(claims)
        assert ledger.contributions_of(2) == {"stranger": 64}


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_nobody_has_given_to_a_step_that_there_is_not_or_whose_members_have_told_otherwise(
    path: Path, step: int
) -> None:
    with closing(Ledger(path)) as ledger:
        for known in (1, 2):
            ledger.record_step(a_step(known), {"p": given(known, 64, 64 * known)})
        ledger.fill_gaps({"p": given(step, 2**53, 2**53, session="c3")})
        assert totals(ledger) == {"p": 128}


def test_the_newest_step_that_was_taken_here_is_not_one_that_others_have_told_of(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        assert ledger.last_taken() is None
        taken = a_step(1).model_copy(update={"gather": 0.1, "average": 0.2, "apply": 0.1})
        ledger.record_step(taken, {"p": given(1, 64, 64)})
        ledger.record_step(a_step(2), {"p": given(2, 64, 128)})
        assert ledger.last_taken() == taken


def test_a_step_that_another_all_reduce_led_to_replaces_what_came_after(path: Path) -> None:
    ledger = Ledger(path)
    for step in range(1, 11):
        ledger.record_step(a_step(step), {"p": given(step, 64, 64 * step)})
        ledger.record_evaluation(step, Evaluation(loss=3.0 - step / 10), 0.0)
    ledger.record_step(a_step(11), {"late": given(11, 64, 64)})
    ledger.record_step(a_step(10), {"p": given(10, 64, 64 * 10)})
    assert ledger.last_step() == 11, "the same step again changes nothing"
    for _ in range(2):
        ledger.record_step(a_step(9, way="b"), {})
        assert ledger.last_step() == 9
        assert ledger.evaluations()[-1].step == 8
        assert ledger.contributions_of(9) == {}
        assert totals(ledger) == {"p": 512}
        assert ledger.contributors()[0].steps == 8


def test_after_a_rewind_the_totals_go_on_agreeing_with_the_global_steps(path: Path) -> None:
    ledger = Ledger(path)
    for step in range(1, 11):
        ledger.record_step(a_step(step), {"p": given(step, 64, 64 * step)})
    # A new session, and the old one, whose counter still holds what was forgotten.
    ledger.record_step(a_step(9, way="b"), {"p": given(9, 64, 64 * 11)})
    ledger.record_step(a_step(10, way="b"), {"p": given(10, 30, 64 * 11 + 30), "q": given(10, 34, 34)})
    assert totals(ledger) == {"p": 9 * 64 + 30, "q": 34}
    assert ledger.samples_total() == sum(step.samples for step in ledger.steps())
    ledger.record_step(a_step(10, way="c"), {})
    assert totals(ledger) == {"p": 9 * 64}
    ledger.record_step(a_step(3, way="d"), {"p": given(3, 64, 64 * 12 + 30)})
    assert totals(ledger) == {"p": 3 * 64}


def test_contributions_delivered_again_after_a_rewind_stay_forgotten(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_contribution("p", given(1, 10, 10))
    ledger.record_contribution("p", given(3, 10, 30))
    ledger.record_step(a_step(3), {})
    ledger.record_step(a_step(3, way="b"), {})
    ledger.record_contribution("p", given(3, 10, 30))
    assert totals(ledger) == {"p": 10}
    # One that was missed at first and belongs to what was kept still counts.
    ledger.record_contribution("p", given(2, 10, 20))
    assert totals(ledger) == {"p": 20}


def test_steps_are_read_from_where_the_reader_was(path: Path) -> None:
    ledger = Ledger(path)
    for step in range(1, 24):
        ledger.record_step(a_step(step), {})
    assert [step.step for step in ledger.steps(after=20)] == [21, 22, 23]
    assert [step.step for step in ledger.steps(after=3, limit=2)] == [4, 5]
    assert [step.step for step in ledger.steps(every=10)] == [10, 20, 23]


def test_many_evaluations_are_thinned_and_the_newest_is_always_there(path: Path) -> None:
    ledger = Ledger(path)
    for step in range(0, 101):
        ledger.record_evaluation(step, Evaluation(loss=3.0), 0.0)
    assert len(ledger.evaluations(most=101)) == 101
    thinned = [point.step for point in ledger.evaluations(after=20, most=10)]
    assert 8 <= len(thinned) <= 11
    assert (thinned[0] > 20, thinned[-1]) == (True, 100)
    assert max(later - earlier for earlier, later in pairwise(thinned)) <= 10


def test_an_evaluation_that_is_not_finite_is_left_out(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_evaluation(1, Evaluation(loss=float("nan")), 0.0)
    ledger.record_evaluation(2, Evaluation(loss=float("inf")), 0.0)
    ledger.record_evaluation(3, Evaluation(loss=2.5), 0.0)
    ledger.record_evaluation(3, Evaluation(loss=2.25), 1.0)
    ledger.record_evaluation(9, Evaluation(loss=2.0), 2.0)
    assert [evaluation.step for evaluation in ledger.evaluations()] == [3, 9]
    assert ledger.first_and_last_evaluation() == (EvaluationPoint(3, 2.25, 1.0, {}), EvaluationPoint(9, 2.0, 2.0, {}))


WRITER = """
import sys
from pathlib import Path
from dedloc_kit.ledger import Ledger
from tests.ledgers import a_step, given

ledger = Ledger(Path(sys.argv[1]))
for step in range(ledger.last_step() + 1, int(sys.argv[2])):
    ledger.record_step(a_step(step), {"p": given(step, 40, 40 * step), "q": given(step, 24, 24 * step)})
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""


def start_writer(path: Path, until: int) -> subprocess.Popen[str]:
    root = Path(__file__).parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(until)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


@pytest.mark.real
def test_a_writer_killed_in_the_middle_loses_nothing_that_was_recorded(path: Path) -> None:
    seen = 0
    for life in range(3):
        writer = start_writer(path, 1_000_000)
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= seen + 20 + 7 * life:
                break
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()  # what it still said before it died
        writer.wait(timeout=30)
        said = int(rest[-1]) if rest else int(line)
        ledger = Ledger(path)
        seen = ledger.last_step()
        assert said <= seen <= said + 1  # killed between the record and the word about it
        assert [step.step for step in ledger.steps()] == list(range(1, seen + 1))
        assert totals(ledger) == {"p": 40 * seen, "q": 24 * seen}
        assert ledger.samples_total() == sum(step.samples for step in ledger.steps())
        ledger.close()


@pytest.mark.soak
def test_a_reader_in_another_process_sees_whole_steps_while_the_writer_writes(path: Path) -> None:
    writer = start_writer(path, 300)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "1\n"
    reader = Ledger(path, read_only=True)
    last = 0
    while last < 299:
        assert last <= reader.last_step()
        last = reader.last_step()
        assert sum(reader.contributions_of(last).values()) == 64
        if writer.poll() is not None:
            last = reader.last_step()
            break
    assert writer.wait(timeout=60) == 0
    assert last == reader.last_step() == 299
    assert totals(reader) == {"p": 40 * 299, "q": 24 * 299}


def test_a_reader_opens_a_ledger_whose_writer_has_left(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_step(a_step(1), {"p": given(1, 64, 64)})
    ledger.close()
    assert Ledger(path, read_only=True).last_step() == 1


def test_a_copy_of_the_main_file_alone_has_everything_after_a_clean_exit_though_the_page_still_reads(
    path: Path, tmp_path: Path
) -> None:
    ledger = Ledger(path)
    with closing(Ledger(path, read_only=True)) as page:
        for step in range(1, 200):
            ledger.record_step(a_step(step), {"p": given(step, 64, 64 * step)})
            assert page.last_step() == step
        ledger.close()
        log = path.with_name(f"{path.name}-wal")
        assert not log.exists() or not log.stat().st_size
        (tmp_path / "alone").mkdir()
        alone = tmp_path / "alone" / path.name
        alone.write_bytes(path.read_bytes())
        with closing(Ledger(alone, read_only=True)) as copied:
            assert copied.last_step() == page.last_step() == 199


def test_a_reader_cannot_write(path: Path) -> None:
    Ledger(path).close()
    with pytest.raises(UserError, match="cannot be written"):
        Ledger(path, read_only=True).record_evaluation(1, Evaluation(loss=2.0), 0.0)


def test_threads_share_one_ledger(path: Path) -> None:
    ledger = Ledger(path)

    def record(peer: str) -> None:
        for step in range(1, 51):
            ledger.record_contribution(peer, given(step, 1, step))

    threads = [threading.Thread(target=record, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert totals(ledger) == {f"p{number}": 50 for number in range(4)}


def test_a_folder_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="check that the folder exists"):
        Ledger(tmp_path / "nowhere" / "ledger.sqlite")


def test_a_reader_does_not_create_a_ledger(path: Path) -> None:
    with pytest.raises(UserError, match="check that the coordinator has started"):
        Ledger(path, read_only=True)
    assert not path.exists()
    path.touch()
    with pytest.raises(UserError, match="wait until the coordinator has started"):
        Ledger(path, read_only=True)


def test_a_file_that_is_no_database_is_explained_and_left_alone(path: Path) -> None:
    path.write_text("my notes\n" * 1000)
    for read_only in (False, True):
        with pytest.raises(UserError, match="is not a ledger"):
            Ledger(path, read_only=read_only)
    assert path.read_text() == "my notes\n" * 1000


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE notes (text)")
    other.close()
    with pytest.raises(UserError, match="database of something else"):
        Ledger(path)


def statements_of_a_look(file: Path, making: int) -> int:
    """How many statements it takes a reader to check a ledger that is made as it begins this one."""
    statements = 0

    def make(_: str) -> None:
        nonlocal statements
        statements += 1
        if statements == making:
            schema.prepare(maker)

    with (
        closing(sqlite3.connect(file, isolation_level=None)) as maker,
        closing(sqlite3.connect(file, isolation_level=None)) as reader,
    ):
        maker.execute("PRAGMA journal_mode = WAL")
        reader.set_trace_callback(make)
        with suppress(schema.UnreadyLedger):
            schema.check(reader, file)
    return statements


def test_a_ledger_that_is_made_while_somebody_looks_is_unready_or_ready_and_nothing_else(path: Path) -> None:
    making = 1
    while making <= statements_of_a_look(path.with_name(f"{making}.sqlite"), making):
        making += 1
    assert making > 1


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (99, "newer version of dedloc_kit; upgrade"),
        (11, r"earlier version .*; go on with dedloc_kit 0\.4\.0, which reads and exports it, or move it away"),
        (10, r"go on with dedloc_kit 0\.2\.0, which reads"),
        (1, "tables of version 1, here"),
    ],
)
def test_a_ledger_of_another_version_is_explained_and_left_alone(path: Path, version: int, told: str) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {version}")
        other.execute("DROP TABLE answered")
    other.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(UserError, match=told):
            Ledger(path, read_only=read_only)
    assert path.read_bytes() == before


def test_who_was_left_out_of_a_step_is_kept_with_it_and_counted_once(path: Path) -> None:
    ledger = Ledger(path)
    some = LeftOut(count=300, some={"p": "fell silent", "q": "did not come"})
    for step in (1, 2, 3):
        for _ in range(2):
            ledger.record_step(a_step(step).model_copy(update={"left_out": None if step == 2 else some}), {})
    reader = Ledger(path, read_only=True)
    assert [step.left_out for step in reader.steps()] == [some, None, some]
    times, steps = reader.left_out(most=1)
    assert (times, [(step.step, step.left_out) for step in steps]) == (600, [(3, some)])
    ledger.record_step(a_step(2, way="b"), {})
    assert [step.step for step in reader.left_out(most=9)[1]] == [1], "what a rewind forgets was no step"


ASHA = Conviction("p", NOON, "Asha", "it does not show its work (global step 3)")
BO = Conviction("q", NOON + 1, "Bo", "its piece is not the gradient of its work (global step 4)")


def test_convictions_follow_the_orders_and_one_that_is_lifted_stays_on_record(path: Path) -> None:
    now = Clock()
    ledger, reader = Ledger(path, clock=now), Ledger(path, read_only=True)
    ledger.record_convictions([ASHA])
    ledger.record_convictions([ASHA, BO])
    assert reader.convictions() == (2, [BO, ASHA])
    assert reader.convictions(most=1) == (2, [BO])
    assert reader.sent_away() == {"p", "q"}
    now.time = NOON + 60
    ledger.record_convictions([BO])
    now.time = NOON + 90
    again = Conviction("p", NOON + 90, "Asha", "caught again")
    ledger.record_convictions([BO, again])
    assert reader.convictions() == (3, [again, BO, replace(ASHA, lifted=NOON + 60)])
    assert reader.sent_away() == {"p", "q"}
    ledger.record_convictions([ASHA, BO, again])
    assert reader.convictions() == (3, [again, BO, ASHA]), "the orders' file had only been unreadable for a while"


def test_convictions_that_are_known_write_nothing_and_a_rewind_forgets_none(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_convictions([ASHA])
    reader = Ledger(path, read_only=True)
    before = reader.version()
    ledger.record_convictions([ASHA])
    assert reader.version() == before
    for step, way in ((1, "a"), (2, "a"), (1, "b")):
        ledger.record_step(a_step(step, way=way), {})
    assert (reader.last_step(), reader.convictions()) == (1, (1, [ASHA]))


def credit(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """Samples and steps."""
    return {person.peer: (person.samples, person.steps) for person in ledger.people()}


def test_what_a_convicted_peer_gave_since_it_was_last_found_right_is_not_to_its_credit_until_it_is_let_in_again(
    path: Path,
) -> None:
    ledger = Ledger(path, clock=lambda: NOON)
    for step in (1, 2, 3):
        both = {"p": given(step, 10, 10 * step), "q": given(step, 5, 5 * step, session="b1", name="Bo")}
        ledger.record_step(a_step(step, samples=15), both)
    recent = {person.peer: person.recent for person in ledger.people()}
    seconds = ledger.seconds_total()
    ledger.record_convictions([replace(ASHA, last_passed=2), replace(BO, last_passed=0)])
    assert credit(ledger) == {"p": (20, 2)}
    assert ledger.people()[0].recent == pytest.approx(recent["p"] * 2 / 3)
    assert (ledger.samples_total(), ledger.seconds_total()) == (45, seconds), "it did go into the model"
    ledger.record_step(a_step(4), {"p": given(4, 10, 40)})
    assert credit(ledger) == {"p": (20, 2)}, "a step that was under way is not to its credit either"
    assert ledger.contributions_of(4) == {"p": 10}, "what happened stays on record"
    ledger.record_convictions([])
    assert credit(ledger) == {"p": (40, 4), "q": (15, 3)}
    assert ledger.people()[0].recent == pytest.approx(recent["p"] * 4 / 3)


def test_of_steps_that_are_missing_here_and_of_rewinds_no_more_is_withdrawn_than_was_given(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_convictions([replace(ASHA, last_passed=2)])
    ledger.record_step(a_step(1), {"p": given(1, 10, 10)})
    ledger.record_step(a_step(2), {"p": given(2, 10, 20)})
    ledger.record_step(a_step(5), {"p": given(5, 10, 50)})  # of 3 and 4 nobody told
    assert (credit(ledger), ledger.samples_total()) == ({"p": (20, 2)}, 50)
    ledger.record_step(a_step(4, way="b"), {"p": given(4, 10, 90)})
    assert credit(ledger) == {"p": (20, 2)}
    ledger.record_convictions([])
    assert credit(ledger)["p"][0] == ledger.samples_total()


def test_what_was_given_before_this_ledger_began_stays_to_the_credit_of_whoever_is_convicted(path: Path) -> None:
    ledger = Ledger(path)
    ledger.adopt([Contributor("p", "Asha", 72, 9, 1000.0, 1009.0)])
    ledger.record_step(a_step(1), {"p": given(1, 10, 10)})
    ledger.record_convictions([replace(ASHA, last_passed=0)])
    assert credit(ledger) == {"p": (72, 9)}


def test_a_conviction_of_which_it_is_not_known_what_was_right_withdraws_nothing(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_convictions([replace(ASHA, last_passed=None)])
    ledger.record_step(a_step(1), {"p": given(1, 10, 10)})
    (held,) = ledger.convictions()[1]
    assert (credit(ledger), held.last_passed) == ({"p": (10, 1)}, None)


def test_convictions_are_taken_over_as_another_ledger_has_them(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_step(a_step(1), {"p": given(1, 10, 10)})
    held = replace(ASHA, last_passed=0)
    ledger.take_convictions([held, replace(BO, lifted=NOON + 5)])
    assert (ledger.sent_away(), credit(ledger)) == ({"p"}, {})
    reader = Ledger(path, read_only=True)
    before = reader.version()
    ledger.take_convictions([held])
    assert reader.version() == before
    ledger.take_convictions([replace(held, lifted=NOON + 9)])
    assert (ledger.convictions()[0], ledger.sent_away(), credit(ledger)) == (2, set(), {"p": (10, 1)})


def test_a_full_disk_is_explained_and_the_ledger_stays_whole(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_step(a_step(1), {"p": given(1, 64, 64)})
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for step in range(2, 2000):
            ledger.record_step(a_step(step), {"p": given(step, 64, 64 * step)})

    with pytest.raises(UserError, match="free disk space"):
        fill()
    assert ledger.samples_total() == sum(step.samples for step in ledger.steps())


def a_peer(peer: str = "p", *, device: str = "T4", team: str = "", follower: bool = False) -> PeerSeen:
    return PeerSeen(
        peer=peer,
        name="Asha",
        team=team,
        device=device,
        step=1,
        samples=0,
        samples_per_second=1.0,
        follower=follower,
        client_mode=True,
    )


@dataclass
class Watching:
    """A coordinator that looks every second."""

    ledger: Ledger
    now: Clock

    def see(self, seconds: int, *peers: PeerSeen) -> None:
        for _ in range(seconds):
            self.ledger.record_presence(peers)
            self.now.time += 1.0

    def visits(self, peer: str = "p") -> list[tuple[float, float, bool]]:
        """Seconds after noon, oldest first."""
        found = self.ledger.visits_of(peer, 100)[::-1]
        return [(visit.since - NOON, visit.until - NOON, visit.here) for visit in found]


@pytest.fixture
def watching(path: Path) -> Watching:
    now = Clock()
    ledger = Ledger(path, clock=now)
    ledger.record_step(a_step(1), {"p": given(1, 64, 64)})
    return Watching(ledger, now)


def test_a_visit_lasts_until_its_peer_was_seen_last(watching: Watching) -> None:
    watching.see(100, a_peer(), a_peer("c", follower=True))
    assert watching.visits() == [(0.0, 90.0, True)]
    watching.see(100)
    assert watching.visits() == [(0.0, 99.0, False)]
    assert watching.ledger.here() == {}
    assert watching.visits("c") == []
    assert watching.ledger.people()[0].seconds == 99.0
    assert watching.ledger.people()[0].devices == ("T4",)


def test_whoever_is_back_within_a_minute_has_not_left(watching: Watching) -> None:
    watching.see(100, a_peer())
    watching.see(50)
    watching.see(50, a_peer())
    watching.see(100)
    assert watching.visits() == [(0.0, 199.0, False)]
    watching.see(10, a_peer())
    watching.see(100)
    assert watching.visits() == [(0.0, 199.0, False), (300.0, 309.0, False)]
    assert watching.ledger.people()[0].seconds == 199.0 + 9.0


def test_a_visit_goes_on_when_the_coordinator_starts_again_at_once(watching: Watching, path: Path) -> None:
    watching.see(100, a_peer())
    watching.ledger.close()  # nine seconds after the last mark
    again = Ledger(path, clock=watching.now)
    assert again.here() == {}
    assert again.people()[0].seconds == 99.0
    watching.ledger = again
    watching.see(10, a_peer())
    assert watching.visits() == [(0.0, 100.0, True)]
    assert again.here() == {"p": NOON}
    assert again.people()[0].seconds == 100.0


def test_a_coordinator_that_slept_does_not_count_its_sleep(watching: Watching) -> None:
    watching.see(100, a_peer())
    watching.now.time += 3600.0
    watching.see(61, a_peer())
    assert watching.visits() == [(0.0, 99.0, False), (3700.0, 3760.0, True)]
    watching.now.time -= 7200.0  # the clock is put right
    watching.see(31, a_peer())
    assert watching.ledger.people()[0].seconds == 99.0 + 60.0 + 30.0


def test_of_whoever_leaves_without_a_sample_nothing_stays(watching: Watching) -> None:
    watching.see(100, a_peer("ghost"))
    assert list(watching.ledger.here()) == ["ghost"]
    watching.see(100)
    assert watching.ledger.visits(10) == []
    assert watching.ledger._rows("SELECT count(*) FROM people WHERE peer = 'ghost'") == [(0,)]


def test_the_samples_of_a_visit_are_those_given_during_it(watching: Watching) -> None:
    watching.see(10, a_peer(team="delta"))
    watching.ledger.record_step(a_step(2), {"p": given(2, 64, 128)})
    watching.see(10, a_peer(team="delta", device="A100"))
    (visit,) = watching.ledger.visits(10)
    assert (visit.samples, visit.device, visit.mode) == (64, "A100", "client")
    (asha,) = watching.ledger.people()
    assert (asha.samples, asha.team, asha.devices) == (128, "delta", ("A100", "T4"))


def test_a_peer_with_a_new_device_at_every_moment_does_not_fill_the_disk(watching: Watching) -> None:
    for number in range(100):
        watching.see(1, a_peer(device=f"device {number}"))
    assert len(watching.ledger.people()[0].devices) == 16
    assert len(watching.visits()) == 1


def test_recent_contribution_arrives_at_a_steady_rate_and_halves_in_a_week(path: Path) -> None:
    now = Clock()
    ledger = Ledger(path, clock=now)
    for step in range(1, 4 * 60):
        now.time += 6 * 3600.0
        ledger.record_contribution("p", given(step, 10, 10 * step))
    assert ledger.people()[0].recent == pytest.approx(40.0, rel=0.02)
    assert [samples for _, samples in ledger.days_of("p")][1:-1] == [40] * 59
    now.time += 7 * 86_400.0
    assert ledger.people()[0].recent == pytest.approx(20.0, rel=0.02)


def test_what_a_rewind_forgets_is_taken_back_from_the_running_sums(watching: Watching) -> None:
    ledger = watching.ledger
    watching.see(1, a_peer())
    for step in range(2, 11):
        ledger.record_step(a_step(step), {"p": given(step, 64, 64 * step), "q": given(step, 8, 8 * (step - 1))})
    ledger.record_step(a_step(6, way="b"), {"p": given(6, 64, 64 * 11)})
    asha, other = ledger.people()
    assert (other.samples, ledger.days_of("q")) == (4 * 8, [(20_000, 4 * 8)])
    assert (asha.samples, asha.steps, asha.sessions) == (6 * 64, 6, 1)
    assert ledger.days_of("p") == [(20_000, 6 * 64)]
    assert ledger.visits(1)[0].samples == 5 * 64
    assert asha.recent == pytest.approx(6 * 64 * math.log(2) / 7, rel=1e-4)


def test_a_peer_s_own_losses_are_thinned_whatever_steps_it_took_part_in(path: Path) -> None:
    ledger = Ledger(path)
    for step in range(1, 201, 2):
        ledger.record_contribution("p", given(step, 1, step))
    ledger.record_contribution("p", given(203, 1, 500, session="b2"))
    losses = ledger.losses_of("p", 50)
    assert 40 <= len(losses) <= 51
    assert losses[-1] == (203, 2.0)
    assert ledger.losses_of("nobody", 50) == []


def test_troubles_are_counted_and_the_last_ones_are_kept(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.troubles("failed") == (0, [])
    for number in range(60):
        ledger.record_trouble("rejected", f"nonsense {number}", count=3)
    ledger.record_trouble("failed", "a member fell silent", step=7)
    count, rejected = ledger.troubles("rejected")
    assert (count, len(rejected), rejected[0].text) == (180, 50, "nonsense 59")
    count, (failed,) = ledger.troubles("failed")
    assert (count, failed.step, failed.text) == (1, 7, "a member fell silent")


def test_a_reader_notices_that_another_process_has_written(path: Path) -> None:
    ledger = Ledger(path)
    reader = Ledger(path, read_only=True)
    before = reader.version()
    assert reader.version() == before
    ledger.record_step(a_step(1), {})
    assert reader.version() != before


def test_a_reader_notices_that_another_file_lies_in_the_place_of_its_own(path: Path) -> None:
    with closing(Ledger(path)) as ledger, closing(Ledger(path, read_only=True)) as reader:
        ledger.record_step(a_step(1), {})
        assert not reader.replaced
        ledger.copy(path)
        assert reader.replaced
        assert [step.step for step in reader.steps()] == [1], "its own is still open"


def test_a_copy_is_as_it_was_if_a_step_that_it_must_hold_is_missing(path: Path) -> None:
    copy = path.with_name("copy.sqlite")
    with closing(Ledger(path)) as ledger:
        ledger.record_step(a_step(1), {})
        assert ledger.copy(copy) == newest(path) == ledger.copy(copy, newest(path))
        for missing in (Newest(2, "ab"), Newest(1, "another round")):
            with pytest.raises(UserError, match=r"damaged \(its history is another one\), and its copy .* stays"):
                ledger.copy(copy, missing)
    assert newest(copy, finished=True).step == 1


def test_a_copy_is_as_it_was_if_the_ledger_is_damaged_inside(path: Path) -> None:
    copy = path.with_name("copy.sqlite")
    with closing(Ledger(path)) as ledger:
        for step in range(1, 200):
            ledger.record_step(a_step(step), {"p": given(step, 64, 64 * step)})
    with closing(Ledger(path)) as ledger:
        ledger.copy(copy)
        before = copy.read_bytes()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 8192)
    with closing(Ledger(path)) as ledger, pytest.raises(UserError, match=r"is damaged \(.*stop the coordinator"):
        ledger.copy(copy)
    assert copy.read_bytes() == before


def lent(step: int, peer: str = "QmLent", size: int = 1000, **parts: float) -> GlobalStep:
    return a_step(step).model_copy(update={"carried": {peer: Carried(bytes=size, name="Lena")}, **parts})


def test_a_lent_line_counts_by_bytes_and_hours_and_never_as_samples(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.record_step(lent(1, compute=100.0, gather=1.0, average=2.0, apply=0.5), {"QmA": given(1, 64, 64)})
        ledger.record_step(lent(1, size=5), {})  # the same once more
        ledger.record_step(lent(2, compute=1e6), {})
        (lender,) = ledger.lenders(10)
        assert (lender.peer, lender.name, lender.bytes, lender.steps) == ("QmLent", "Lena", 2000, 2)
        assert lender.seconds == 103.5 + MAX_STEP_SECONDS, "a run that was paused in between lends no weeks"
        assert [person.peer for person in ledger.people()] == ["QmA"]
        for step in range(3, 6):
            ledger.record_step(lent(step, size=2**53), {})
        assert ledger.lenders(10)[0].bytes == MAX_SAMPLES
        ledger.record_step(lent(6, "QmOther"), {})
        assert [each.peer for each in ledger.lenders(10)] == ["QmLent", "QmOther"]
        assert [each.peer for each in ledger.lenders(1)] == ["QmLent"]
        ledger.record_convictions([Conviction("QmLent", 5.0, "Lena", "it made a false average")])
        assert [each.peer for each in ledger.lenders(10)] == ["QmOther"]


def test_scores_by_suites_are_kept_and_a_rewind_takes_back_those_of_what_is_lost(path: Path) -> None:
    def score(model: str, step: int, mean: float) -> SuiteScore:
        return SuiteScore("accuracy of belebele_ukr_Cyrl", model, step, 1000.0, 900, mean, 0.015)

    ledger = Ledger(path)
    for step in (1, 2, 3):
        ledger.record_step(a_step(step), {})
    ledger.record_suites([score("", 3, 0.3), score("", 1, 0.25), score("them/other", 0, 0.4)])
    ledger.record_suites([score("", 3, 0.35)])
    reader = Ledger(path, read_only=True)
    kept = [score("", 1, 0.25), score("", 3, 0.35), score("them/other", 0, 0.4)]
    assert reader.suites() == kept
    ledger.record_step(a_step(2, way="b"), {})
    assert reader.suites() == [kept[0], kept[2]]
