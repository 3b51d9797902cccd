"""Values and tensors go from one process of a machine to another as they are."""

import socket
import threading

import pytest
import torch

from dedloc_kit.pipe import Pipe


@pytest.fixture
def ends() -> tuple[Pipe, Pipe]:
    one, other = socket.socketpair()
    return Pipe(one.detach()), Pipe(other.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool])
def test_a_tensor_arrives_as_it_was_sent(ends: tuple[Pipe, Pipe], dtype: torch.dtype) -> None:
    sent = torch.randn(2, 3, 5).mul(3).to(dtype).transpose(0, 2)
    ends[0].send({"number": 3, "names": ["a"]}, (sent, None, sent[:0]))
    values, (whole, nothing, empty) = ends[1].receive()
    assert values == {"number": 3, "names": ["a"]}
    assert nothing is None
    assert whole is not None
    assert empty is not None
    assert whole.dtype == dtype
    assert torch.equal(whole, sent)
    assert empty.shape == (0, 3, 2)


def test_what_several_threads_send_does_not_mix(ends: tuple[Pipe, Pipe]) -> None:
    def send(number: int) -> None:
        for _ in range(20):
            ends[0].send({"number": number}, (torch.full((50, 50), float(number)),))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(80):
        values, (tensor,) = ends[1].receive()
        assert tensor is not None
        assert (tensor == values["number"]).all()
    for thread in threads:
        thread.join()


def test_the_end_of_the_other_process_is_seen(ends: tuple[Pipe, Pipe]) -> None:
    ends[0].close()
    with pytest.raises((EOFError, OSError)):
        ends[1].receive()
