"""Batches come from another process, or a thread, as they would come from their iterator."""

import logging
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from itertools import count, islice
from multiprocessing import active_children, get_context
from typing import Any

import pytest
import torch
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.batch_process import SLOT, LoaderDied
from dedloc_kit.learning.data.prefetching import Loader, can_fork
from dedloc_kit.learning.data.sources.data_issues import Loss, Losses
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.shards import Shard

Batch = dict[str, Tensor]
pytestmark = [
    pytest.mark.child,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not can_fork(), reason="this system cannot fork a process that computes"),
]
both = pytest.mark.parametrize("fork", [True, False], ids=["process", "thread"])


def fail(text: str) -> None:
    raise AssertionError(text)


def made(begin: int = 0, end: int = 12) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(3)
    for number in range(begin, end):
        size = 1 + 400 * number
        yield {
            "ids": torch.randint(1000, (3, size), generator=generator),
            "mask": torch.rand(size, generator=generator) < 0.5,
            "half": torch.rand(size, 2, generator=generator).to(torch.bfloat16),
            "turned": torch.rand(4, size, generator=generator).T,
            "number": torch.tensor(number),
            "none": torch.empty(0, 5),
            "bytes": torch.arange(7, dtype=torch.uint8),
        }


def same(one: Batch, other: Batch) -> bool:
    return list(one) == list(other) and all(
        values.dtype == other[name].dtype and torch.equal(values, other[name]) for name, values in one.items()
    )


def of(*values: float) -> Batch:
    return {"values": torch.tensor(values)}


def pid_of(batch: Batch) -> int:
    return int(batch["pid"])


def pids(_warn: Warn) -> Iterator[Batch]:
    while True:
        yield {"pid": torch.tensor(os.getpid())}


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@both
def test_batches_are_those_of_the_iterator_bit_for_bit_and_in_order(fork: bool) -> None:
    with Loader(lambda _warn: made(), fail, 2, fork) as loader:
        kept = list(loader.start())
        assert len(kept) == 12
        assert all(same(one, other) for one, other in zip(kept, made(), strict=True))
        with pytest.raises(StopIteration):
            next(loader)


def test_a_batch_that_fits_no_slot_comes_too() -> None:
    large = torch.arange(SLOT // 4 + 1, dtype=torch.int32)

    def mixed(_warn: Warn) -> Iterator[Batch]:
        for number in range(3):
            yield {"values": large if number == 1 else large[:10], "number": torch.tensor(number)}

    with Loader(mixed, fail, 2, fork=True) as loader:
        found = list(loader.start())
    assert [int(batch["number"]) for batch in found] == [0, 1, 2]
    assert torch.equal(found[1]["values"], large)
    assert torch.equal(found[2]["values"], large[:10])


@both
def test_no_more_are_made_ahead_than_wanted(fork: bool) -> None:
    made_so_far = torch.frombuffer(mmap.mmap(-1, 8), dtype=torch.int64)

    def counted(_warn: Warn) -> Iterator[Batch]:
        for number in range(50):
            made_so_far.add_(1)
            yield of(number)

    with Loader(counted, fail, 2, fork) as loader:
        loader.start()
        for taken in range(1, 40):
            next(loader)
            assert taken <= int(made_so_far) <= taken + 3


@both
def test_it_begins_anew_where_it_is_told_to(fork: bool) -> None:
    def endless(_warn: Warn, begin: int, step: int) -> Iterator[Batch]:
        return (of(number) for number in count(begin, step))

    with Loader(endless, fail, 3, fork) as loader:
        loader.start(5, 1)
        assert [next(loader)["values"].item() for _ in range(4)] == [5, 6, 7, 8]
        loader.start(100, 10)
        assert [next(loader)["values"].item() for _ in range(9)] == list(range(100, 190, 10))
        loader.start(0, 1)
        assert [next(loader)["values"].item() for _ in range(9)] == list(range(9))


@both
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (UserError("the text is gone; put it back"), UserError, "^the text is gone; put it back$"),
        (ZeroDivisionError("by nought"), (RuntimeError, ZeroDivisionError), "by nought"),
    ],
)
def test_an_error_comes_after_the_batches_before_it(
    fork: bool, error: Exception, kind: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(_warn: Warn, begin: int) -> Iterator[Batch]:
        yield from map(of, range(begin, 3))
        raise error

    def refusing(_warn: Warn, _begin: int) -> Iterator[Batch]:
        raise error

    with Loader(failing, fail, 2, fork) as loader:
        loader.start(0)
        assert [next(loader)["values"].item() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(kind, match=said):
            next(loader)
        loader.start(2)
        assert next(loader)["values"].item() == 2, "it can be started again"
    with Loader(refusing, fail, 2, fork) as loader, pytest.raises(kind, match=said):
        loader.start(0)
    assert ("making batches failed" in caplog.text) == (fork and not isinstance(error, UserError))


def test_warnings_and_records_come_in_their_order_from_the_process(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("dedloc_kit.somewhere")
    heard = list[str]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(f"{record.levelno} {record.getMessage()} {record.process == os.getpid()}")

    def warning(warn: Warn) -> Iterator[Batch]:
        warn("first")
        yield of(0)
        logger.warning("a %s", "record")
        warn("second")
        yield of(1)
        logger.error("last")

    handler = Handler()
    logging.getLogger("dedloc_kit").addHandler(handler)
    try:
        with Loader(warning, heard.append, 2, fork=True) as loader:
            for batch in loader.start():
                heard.append(f"batch {batch['values'].item():.0f}")
    finally:
        logging.getLogger("dedloc_kit").removeHandler(handler)
    expected = ["first", "batch 0", "30 a record False", "second", "batch 1", "40 last False"]
    assert heard == expected


@both
def test_losses_are_counted_on_though_not_each_is_told(fork: bool) -> None:
    told = list[str]()

    def losing(warn: Warn) -> Iterator[Batch]:
        one, other = (Losses(name, 3, warn) for name in ("one", "other"))
        shard = Shard("data.jsonl", "json")
        for number in range(1, 31):
            for row in range(number):  # each of them again
                one.prove(shard, row, "is bad")
            if number == 20:
                other.lose(Shard("lost.parquet", "parquet"), ValueError("cut"), 0, "text")
            yield of(number)

    with Loader(losing, told.append, 2, fork) as loader:
        batches = loader.start()
        assert [batch["values"].item() for batch in batches] == list(range(1, 31))
    losses = [text.losses for text in told if isinstance(text, Loss)]
    assert len(losses) == len(told) == 3
    assert losses[0] is losses[1]
    assert (losses[0].dataset, losses[0].files, losses[0].bad_rows) == ("one", 3, 30)
    assert (losses[2].dataset, list(losses[2].unreadable)) == ("other", ["lost.parquet"])


def test_the_process_computes_with_one_thread_and_gives_way() -> None:
    def told(_warn: Warn) -> Iterator[Batch]:
        yield {"threads": torch.tensor(torch.get_num_threads()), "nice": torch.tensor(os.nice(0))}

    with Loader(told, fail, fork=True) as loader:
        batch = next(loader.start())
        assert batch["threads"] == 1
        assert batch["nice"] == min(19, os.nice(0) + 5)


def test_a_killed_process_is_told_in_one_line_and_leaves_nothing() -> None:
    with Loader(pids, fail, 2, fork=True) as loader:
        pid = pid_of(next(loader.start()))
        assert pid != os.getpid()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(LoaderDied, match=r"^the process that makes batches was killed by signal 9; .*memory"):
            list(islice(loader, 10))
        assert not is_there(pid), "it is no zombie either"


def test_closing_ends_the_process_though_it_waits_for_something_that_never_comes() -> None:
    def stuck(_warn: Warn) -> Iterator[Batch]:
        yield {"pid": torch.tensor(os.getpid())}
        threading.Event().wait()

    loader = Loader(stuck, fail, 2, fork=True)
    pid, raised = pid_of(next(loader.start())), list[type[BaseException]]()

    def wait() -> None:
        try:
            next(loader)
        except BaseException as error:
            raised.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    loader.close()
    waiting.join()
    assert raised == [StopIteration]
    assert not is_there(pid)
    assert "batches" not in {child.name for child in active_children()}
    loader.close()
    with pytest.raises(StopIteration):
        next(loader)


def test_the_process_does_not_outlive_its_parent() -> None:
    context = get_context("fork")
    here, there = context.Pipe()

    def parent() -> None:
        here.close()
        with Loader(pids, fail, 2, fork=True) as loader:
            there.send(pid_of(next(loader.start())))
            threading.Event().wait()

    process = context.Process(target=parent)
    process.start()
    there.close()
    pid = here.recv()
    process.kill()
    process.join()
    with pytest.raises(EOFError):  # when the last process is gone that held the other end
        here.recv()
    here.close()
    assert pid > 0


def test_a_thread_makes_them_where_nothing_can_be_forked() -> None:
    with Loader(pids, fail, 2, fork=False) as loader:
        assert pid_of(next(loader.start())) == os.getpid()
