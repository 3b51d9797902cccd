"""What this machine is; GPUs are simulated so that the tests run everywhere."""

import sys

import pytest
import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.computing import device

NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"


def works(_: torch.device) -> str:
    return ""


def fails(_: torch.device) -> str:
    return NO_KERNEL


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("without_gpu")
def test_auto_takes_the_cpu_where_there_is_no_gpu() -> None:
    assert device.pick_device("auto").type == "cpu"


@pytest.mark.usefixtures("with_gpu")
def test_auto_takes_the_gpu_where_there_is_one() -> None:
    for choice in ("auto", "cuda"):
        assert device.pick_device(choice, works).type == "cuda"
    assert device.pick_device("cpu", fails).type == "cpu"


@pytest.mark.usefixtures("with_gpu")
def test_a_gpu_that_cannot_be_used_is_not_taken_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert device.pick_device("auto", fails).type == "cpu"
    assert caplog.messages == [
        f"cuda cannot be used, for a small step on it fails: {NO_KERNEL}; computing on the processor"
    ]
    with pytest.raises(UserError, match=f"{NO_KERNEL}; choose the devices 'auto' or 'cpu'"):
        device.pick_device("cuda", fails)


@pytest.mark.usefixtures("without_gpu")
def test_asking_for_a_gpu_that_is_not_there_says_what_to_do_in_one_line() -> None:
    with pytest.raises(UserError, match="choose the device 'auto' or 'cpu'") as caught:
        device.pick_device("cuda")
    assert "\n" not in str(caught.value)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Two GPUs, and none of Apple's."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    return [torch.device("cuda:0"), torch.device("cuda:1")]


def test_a_volunteer_takes_all_gpus_or_those_that_it_names(gpus: list[torch.device]) -> None:
    assert device.pick_devices("auto") == device.pick_devices("cuda") == device.pick_devices("cuda:0,cuda:1") == gpus
    assert device.pick_devices("cuda:1") == gpus[1:]
    assert device.pick_devices("cpu,cpu") == 2 * [torch.device("cpu")]
    with pytest.raises(UserError, match="there is no cuda:2 here; choose the devices 'auto', or of cuda:0 to cuda:1"):
        device.pick_devices("cuda:0,cuda:2")


def test_of_several_gpus_those_are_taken_that_can_take_a_step(
    gpus: list[torch.device], caplog: pytest.LogCaptureFixture
) -> None:
    def first_fails(device: torch.device) -> str:
        return NO_KERNEL if device == gpus[0] else ""

    for choice in ("auto", "cuda"):
        caplog.clear()
        assert device.usable_devices(gpus, choice, first_fails) == gpus[1:]
        assert caplog.messages == [
            f"cuda:0 cannot be used, for a small step on it fails: {NO_KERNEL}; computing on cuda:1"
        ]
    assert device.usable_devices(gpus, "auto", works) == gpus
    assert device.usable_devices(gpus, "auto", fails) == [torch.device("cpu")]
    for choice, failing in (("cuda:0,cuda:1", first_fails), ("cuda", fails)):
        with pytest.raises(UserError, match=f"cuda:0 cannot be used, .*{NO_KERNEL}; choose the devices 'auto' or"):
            device.usable_devices(gpus, choice, failing)
    cpus = 2 * [torch.device("cpu")]
    assert device.usable_devices(cpus, "cpu,cpu", fails) == cpus, "which needs no trial"


def test_a_small_step_finds_out_whether_a_device_can_be_used() -> None:
    assert device.why_unusable(torch.device("cpu")) == ""
    assert device.why_unusable(torch.device("meta")) != "", "nothing is computed there"


def test_apples_gpu_is_taken_where_it_is_unless_the_run_needs_float64(
    gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="no Apple GPU"):
        device.pick_devices("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device.pick_devices("auto") == device.pick_devices("mps") == [torch.device("mps")]


def test_several_devices_are_described_by_kind(gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    assert device.describe_devices(gpus) == "2 x Tesla T4"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda one: ("Tesla T4", "Tesla P100")[one.index])
    assert device.describe_devices(gpus) == "Tesla T4, Tesla P100"


@pytest.mark.parametrize(("cores", "text"), [(1, "CPU, 1 core"), (2, "CPU, 2 cores")])
def test_a_cpu_is_described_by_its_cores(monkeypatch: pytest.MonkeyPatch, cores: int, text: str) -> None:
    monkeypatch.setattr(device, "cores", lambda: cores)
    assert device.describe_device(torch.device("cpu")) == text


def test_a_gpu_is_described_by_its_name_in_at_most_64_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["Tesla T4", "x" * 100])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: next(names))
    assert device.describe_device(torch.device("cuda")) == "Tesla T4"
    assert len(device.describe_device(torch.device("cuda"))) == 64


@pytest.mark.parametrize(
    ("native", "capability", "half"),
    [(True, (8, 0), torch.bfloat16), (False, (7, 5), torch.float16), (False, (6, 0), None)],
)
def test_a_gpu_computes_in_the_half_precision_that_it_is_fast_at(
    monkeypatch: pytest.MonkeyPatch, native: bool, capability: tuple[int, int], half: torch.dtype | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert device.half_precision(torch.device("cuda")) == half


def test_a_cpu_computes_in_float32() -> None:
    assert device.half_precision(torch.device("cpu")) is None


def test_threads_are_set_and_zero_takes_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(device, "cores", lambda: 2)
    try:
        device.set_threads(3)
        assert torch.get_num_threads() == 3
        device.set_threads(0)
        assert torch.get_num_threads() == 2
        device.set_threads(0, 2 * [torch.device("cpu")])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_whoever_feeds_a_gpu_waits_briefly_for_pythons_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    before = sys.getswitchinterval()
    try:
        device.make_current(torch.device("cpu"))
        assert (sys.getswitchinterval(), taken) == (before, [])
        device.make_current(torch.device("cuda:1"))
        assert sys.getswitchinterval() == pytest.approx(device.SWITCH_SECONDS)
        assert taken == [torch.device("cuda:1")]
    finally:
        sys.setswitchinterval(before)
