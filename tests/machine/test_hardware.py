"""What a machine is, and what is said to the owner of one that cannot help."""

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.errors import UserError
from dedloc_kit.machine import hardware
from dedloc_kit.machine.hardware import (
    LARGEST_SKEW,
    Gpu,
    Machine,
    check,
    check_clock,
    check_connections,
    clock_skew,
    cores,
    machine_at,
    skew_between,
)
from tests.swarm.harness import wait_until
from tests.tiny import tiny_run

PEER = "QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi"
LAPTOP = Machine(cores=2, memory=8_000_000_000, free_memory=6_000_000_000, free_disk=10**11, gpus=())
T4 = Gpu("Tesla T4", memory=15_800_000_000, free=15_000_000_000)


@pytest.fixture(autouse=True)
def no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of control groups of a container that has set no limit."""
    monkeypatch.setattr(hardware, "_CGROUP_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "_PROC_CGROUP", tmp_path / "proc")
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def limits(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.mark.child
def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    seen = machine_at(tmp_path / "not" / "there" / "yet")
    assert 1 <= seen.cores <= (os.cpu_count() or 1)
    assert 0 < seen.free_memory <= seen.memory
    assert seen.free_disk > 0


def test_a_machine_is_told_in_words() -> None:
    assert str(LAPTOP) == "2 cores, 8.0 GB of memory"
    assert str(replace(LAPTOP, cores=1, gpus=(T4,))) == "1 core, 8.0 GB of memory, Tesla T4 with 15.8 GB"
    two = replace(LAPTOP, gpus=(T4, T4, replace(T4, name="P100")))
    assert str(two) == "2 cores, 8.0 GB of memory, 2 x Tesla T4 with 15.8 GB, P100 with 15.8 GB"


@pytest.mark.parametrize("inside", ["job/step", "not/to/be/seen"])
def test_a_containers_limits_count_cgroup_2(groups: Path, inside: str) -> None:
    (groups / "proc").write_text(f"0::/{inside}\n")
    limits(groups / "cgroup", memory__max=10**9, memory__current=600 * 10**6, cpu__max="100000 100000")
    (groups / "cgroup" / "memory.stat").write_text("anon 1\ninactive_file 100000000\n")
    limits(groups / "cgroup" / "job" / "step", memory__max="max", memory__current=1, cpu__max="max 100000")
    assert hardware._memory() == (10**9, 500 * 10**6)
    assert cores() == 1


def test_a_containers_limits_count_cgroup_1(groups: Path) -> None:
    (groups / "proc").write_text("5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n3:cpuset:/\n")
    memory, cpu = groups / "cgroup" / "memory", groups / "cgroup" / "cpu"
    limits(memory, memory__limit_in_bytes=2 * 10**9, memory__usage_in_bytes=2 * 10**9 + 1)
    (memory / "memory.stat").write_text("cache 7\ntotal_inactive_file 0\n")
    limits(cpu, cpu__cfs_quota_us=50_000, cpu__cfs_period_us=100_000)
    assert hardware._memory() == (2 * 10**9, 0)
    assert cores() == 1
    limits(cpu, cpu__cfs_quota_us=-1)
    assert cores() == len(os.sched_getaffinity(0))


def test_the_limit_of_a_process_counts(monkeypatch: pytest.MonkeyPatch, groups: Path) -> None:
    (groups / "proc").write_text("")
    used = psutil.Process().memory_info().data
    monkeypatch.setattr("resource.getrlimit", lambda kind: (used + 10**6, used + 10**6))
    total, free = hardware._memory()
    assert total == used + 10**6
    assert 0 <= free <= 2 * 10**6


@pytest.mark.child
def test_gpus_are_found_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/asked"\necho "Tesla T4, 15360, 15000"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine_at(tmp_path).gpus == (Gpu("Tesla T4", 15360 << 20, 15000 << 20),)
    assert "--id=1" in (tmp_path / "asked").read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine_at(tmp_path).gpus == ()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for broken in ("exit 9", "echo No devices were found"):
        tool.write_text(f"#!/bin/sh\n{broken}\n")
        assert machine_at(tmp_path).gpus == ()


def test_a_machine_that_is_large_enough_is_not_talked_about() -> None:
    for parameters in (None, 18_000_000):
        assert check(LAPTOP, parameters) == ()
        assert check(replace(LAPTOP, gpus=(T4,)), parameters) == ()


def test_too_little_memory_is_refused_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(LAPTOP, memory=1_500_000_000, free_memory=1_000_000_000)
    with pytest.raises(UserError, match=r"18 million.* needs 1.9 GB .* this machine has 1.5 GB; join .* 3 GB or more"):
        check(small, 18_000_000)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "x")
    with pytest.raises(UserError, match="Change runtime type"):
        check(small, 18_000_000)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    with pytest.raises(UserError, match="accelerator"):
        check(small, 18_000_000)


@pytest.mark.parametrize(
    ("millions", "memory", "gpus"),
    [(124, 12_700_000_000, (T4,)), (360, 31_400_000_000, (T4, T4)), (124, 12_700_000_000, ())],
)
def test_models_of_a_few_hundred_million_parameters_fit_where_notebooks_are_lent(
    millions: int, memory: int, gpus: tuple[Gpu, ...]
) -> None:
    assert check(replace(LAPTOP, memory=memory, free_memory=memory, gpus=gpus), millions * 1_000_000) == ()


def test_each_replica_on_the_processor_takes_memory_of_its_own() -> None:
    assert check(LAPTOP, 70_000_000) == ()
    (told,) = check(LAPTOP, 70_000_000, devices="cpu,cpu")
    assert "may need 6.3 GB" in told


def test_an_optimizer_state_of_8_bits_makes_room_for_a_larger_model() -> None:
    tight = replace(LAPTOP, memory=2_000_000_000, free_memory=2_000_000_000)
    assert check(tight, 22_000_000, state="8bit") == ()  # 0.6 GB and 58 bytes each
    with pytest.raises(UserError, match=r"needs 2.1 GB"):
        check(tight, 22_000_000)


def test_a_small_server_can_lend_its_line_to_a_model_that_it_could_not_train() -> None:
    small = replace(LAPTOP, memory=1_600_000_000, free_memory=1_500_000_000, gpus=(replace(T4, free=10**9),))
    with pytest.raises(UserError):
        check(small, 17_800_000)
    assert check(small, 17_800_000, lends=True) == ()
    assert check(replace(small, memory=2_200_000_000, free_memory=2_200_000_000), 150_000_000, lends=True) == ()
    with pytest.raises(UserError, match=r"needs 7\.2 GB of memory and this machine has 1\.6 GB"):
        check(small, 150_000_000, lends=True, gives_state=True)


def test_memory_that_others_use_is_worth_a_warning() -> None:
    (told,) = check(replace(LAPTOP, free_memory=1_000_000_000), 18_000_000)
    assert "1.0 GB are free" in told
    assert "close other programs" in told


def test_a_full_gpu_is_refused_unless_the_processor_is_to_train() -> None:
    busy = replace(LAPTOP, gpus=(replace(T4, free=500_000_000),))
    with pytest.raises(UserError, match=r"GPU's memory and 0.5 GB of 15.8 GB are free; .*'cpu'"):
        check(busy, 18_000_000)
    assert check(busy, 18_000_000, devices="cpu") == ()


def test_of_several_gpus_those_that_are_chosen_must_do_and_one_is_enough() -> None:
    mixed = replace(LAPTOP, gpus=(T4, replace(T4, free=500_000_000)))
    (told,) = check(mixed, 18_000_000)
    assert told.startswith("1 of 2 GPUs will hardly do: ")
    assert check(mixed, 18_000_000, devices="cuda:0") == ()
    with pytest.raises(UserError, match="end what else uses the GPU"):
        check(mixed, 18_000_000, devices="cuda:1")


def test_a_tpu_is_said_to_be_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    for name in ("TPU_NAME", "TPU_ACCELERATOR_TYPE", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert hardware.tpu() == ""
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-8")
    assert "TPU of this machine is not used" in hardware.tpu()


def test_a_full_disk_is_refused() -> None:
    with pytest.raises(UserError, match=r"disk is nearly full \(0.1 GB free"):
        check(replace(LAPTOP, free_disk=100_000_000), None)


def test_peers_that_answer_are_no_problem_and_a_closed_way_to_them_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_connections([f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}"], page_answers=False)
    closed = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}"]
    with pytest.raises(UserError, match=f"page answers, but nobody answers at 127.0.0.1, port {port}: a firewall"):
        check_connections(closed, page_answers=True)
    with pytest.raises(UserError, match=r"^nobody answers at .*ask the organizer"):
        check_connections(closed, page_answers=False)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    with pytest.raises(UserError, match="switch on 'Internet'"):
        check_connections(closed, page_answers=False)
    monkeypatch.setattr(hardware, "own_address", lambda: None)
    with pytest.raises(UserError, match="no network"):
        check_connections(closed, page_answers=False)


@pytest.mark.parametrize("address", ["nonsense", "/ip4/\x1b[31m/tcp/1/p2p/x"])
def test_an_address_that_cannot_be_read_is_not_shown(address: str) -> None:
    with pytest.raises(UserError, match="address that cannot be read"):
        check_connections([address], page_answers=True)


@pytest.mark.parametrize(
    ("sent", "there", "received", "skew"),
    [
        (100.0, 100.0, 100.1, 0.0),
        (101.9, 100.0, 102.0, 0.0),  # the date was written up to two seconds ago
        (102.5, 100.0, 102.6, 0.5),
        (90.0, 100.0, 90.5, -9.5),
        (90.0, 100.0, 130.0, 0.0),  # a slow answer proves nothing
    ],
)
def test_no_more_skew_is_seen_than_is_certain(sent: float, there: float, received: float, skew: float) -> None:
    assert skew_between(sent, there, received) == pytest.approx(skew)


def test_the_skew_is_measured_against_the_coordinators_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    page.start()
    try:
        wait_until(lambda: clock_skew(page.url) == 0.0, "a clock is ahead of itself")  # a busy page dates answers late
        now = time.time
        monkeypatch.setattr("dedloc_kit.machine.hardware.time", _Clock(lambda: now() + 60.0))
        assert clock_skew(page.url) == pytest.approx(60.0, abs=3.0)
    finally:
        page.stop()
    assert clock_skew(page.url) is None


class _Clock:
    """The module `time`, with another clock."""

    def __init__(self, clock: object) -> None:
        self.time = clock


def test_a_wrong_clock_is_told_and_a_very_wrong_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_clock(-4.0) is None
    assert "7 seconds behind" in (check_clock(-7.0) or "")
    with pytest.raises(UserError, match=r"61 seconds ahead.*set-ntp"):
        check_clock(61.0)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "x")
    with pytest.raises(UserError, match="start a new one"):
        check_clock(-LARGEST_SKEW - 1)
