"""What a driver keeps comes back as it was, from memory or from the disk, and takes no more room than it must."""

import os
from pathlib import Path

import pytest
import torch

from dedloc_kit.swarm.pipeline import spilled
from dedloc_kit.swarm.pipeline.kept import Backward, Kept
from dedloc_kit.swarm.pipeline.protocol import Call, Content
from dedloc_kit.swarm.remote.tensors import packed, unpacked


def backward(number: int, peer: str = "a", step: int = 0) -> Backward:
    return Backward(peer, Call(what="backward", stage=1, number=number, step=step, rows=2, length=3))


def content(number: int, gradient: bool = True) -> Content:
    hidden = packed(torch.full((2, 3, 8), float(number)))
    return Content(
        bytes([number]) * 24, hidden, packed(torch.full((2, 3, 8), -float(number)), "8bit") if gradient else None
    )


def test_contents_come_back_from_the_disk_as_they_were(tmp_path: Path) -> None:
    kept, calls = Kept(tmp_path, most=0), [backward(number) for number in range(4)]
    for call in calls:
        kept.add(call, content(call.call.number, gradient=call.call.number != 2))
        assert kept.fits
    assert not kept._in_memory
    assert kept.of("a") == calls
    for number, call in enumerate(calls):
        found = kept.content(call)
        assert found is not None
        assert found.batch == bytes([number]) * 24
        assert found.hidden is not None
        assert unpacked(found.hidden).eq(number).all()
        assert (found.gradient is None) == (number == 2)
        assert found.gradient is None or torch.allclose(unpacked(found.gradient), torch.tensor(-float(number)), 0.01)
    kept.close()


def test_only_what_is_too_much_for_memory_goes_to_the_disk(tmp_path: Path) -> None:
    size = content(0).size
    kept = Kept(tmp_path, most=2 * size)
    for number in range(5):
        kept.add(backward(number), content(number))
        assert kept.fits
    assert sum(each.size for each in kept._in_memory.values()) == 2 * size
    assert kept.bytes == 5 * size
    kept.close()


def test_room_on_the_disk_is_free_again_once_all_has_counted(tmp_path: Path) -> None:
    kept = Kept(tmp_path, most=0)
    for number in range(3):
        kept.add(backward(number, peer="ab"[number % 2]), content(number))
        assert kept.fits
    file = kept._spill._file
    assert file is not None
    assert os.fstat(file.fileno()).st_size == kept.bytes
    kept.drop("a", step=1)
    assert len(kept) == 1
    assert os.fstat(file.fileno()).st_size
    kept.drop("b", step=1)
    assert not kept.bytes
    assert not os.fstat(file.fileno()).st_size
    kept.add(backward(7), content(7))
    assert kept.fits
    assert kept.content(kept.of("a")[0]) is not None
    kept.close()
    assert not any(tmp_path.iterdir())


def test_what_another_peer_has_by_now_is_not_given_out_once_more(tmp_path: Path) -> None:
    kept, before, after = Kept(tmp_path), backward(0), backward(0, peer="b")
    kept.add(before, content(0))
    kept.add(after, content(0))
    assert kept.content(before) is None
    assert kept.content(after) is not None
    assert kept.bytes == content(0).size


def test_where_the_disk_has_no_room_nothing_is_lost_and_nothing_more_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spilled, "MIN_DISK_BYTES", 2**60)
    kept = Kept(tmp_path, most=0)
    kept.add(backward(0), content(0))
    assert not kept.fits
    assert not kept.fits
    assert kept.content(kept.of("a")[0]) is not None
    assert len(caplog.records) == 1, "it is said once"
    monkeypatch.undo()
    assert kept.fits
    assert not kept._in_memory
    kept.close()
