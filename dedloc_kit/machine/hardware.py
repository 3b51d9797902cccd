"""What this machine is and whether it can help, looked at before anything heavy is started."""

import math
import os
import resource
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

import psutil
import requests

from dedloc_kit.errors import UserError
from dedloc_kit.machine.dialling import answering, host_and_port, in_own_loop, own_address
from dedloc_kit.machine.hosted import hosted
from dedloc_kit.machine.memory_model import gpu_memory_needed, lender_memory_needed, memory_needed

MIN_DISK_BYTES = 200_000_000
"""For the identity, the logs and the tokenizer; training data is streamed."""

TOLERATED_SKEW, LARGEST_SKEW = 5.0, 10.0
NVIDIA_SECONDS = 10.0
CLOCK_SECONDS = 10.0

_CGROUP_ROOT, _PROC_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: int
    """Bytes."""
    free: int


@dataclass(frozen=True)
class Machine:
    """What this process may use; limits of a container and of the process (`ulimit -d`) count. Memory and disk in
    bytes."""

    cores: int
    memory: int
    free_memory: int
    free_disk: int
    """Where the volunteer's folder is."""
    gpus: tuple[Gpu, ...]

    def __str__(self) -> str:
        """In words: `4 cores, 31.4 GB of memory, 2 x Tesla T4 with 15.8 GB`."""
        parts = [f"{self.cores} core{'' if self.cores == 1 else 's'}", f"{gigabytes(self.memory)} of memory"]
        kinds = Counter(f"{gpu.name} with {gigabytes(gpu.memory)}" for gpu in self.gpus)
        return ", ".join([*parts, *(kind if count == 1 else f"{count} x {kind}" for kind, count in kinds.items())])


def machine_at(folder: Path) -> Machine:
    """This machine as it is now; `folder` need not exist yet."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    memory, free = _memory()
    return Machine(cores(), memory, free, shutil.disk_usage(there).free, _gpus())


def check(
    machine: Machine,
    parameters: int | None,
    *,
    devices: str = "auto",
    state: str = "float32",
    lends: bool = False,
    gives_state: bool = False,
) -> tuple[str, ...]:
    """Whether this machine can train a model of so many parameters, or lend its line to that, if their number is known.

    :param devices: as in PeerConfig, as `lends` and `gives_state`
    :param state: `optimizer.state_dtype` of the run
    Returns what its owner may want to know, in sentences. Raises UserError with what is missing and what would help.
    """
    if machine.free_disk < MIN_DISK_BYTES:
        raise UserError(
            f"the disk is nearly full ({gigabytes(machine.free_disk)} free, {gigabytes(MIN_DISK_BYTES)} are needed); "
            "make room, or choose a folder on another disk"
        )
    if parameters is None:
        return ()
    told: tuple[str, ...] = ()
    if lends:
        needed = lender_memory_needed(parameters, state if gives_state else None)
    else:
        gpus = chosen(machine.gpus, devices)
        told = _check_gpus(gpus, parameters)
        needed = memory_needed(parameters, _replicas(gpus, devices), state)
    model = f"the model of this run ({_millions(parameters)} parameters)"
    if machine.memory < needed:
        raise UserError(
            f"{model} needs {gigabytes(needed)} of memory and this machine has {gigabytes(machine.memory)}; "
            f"{more_memory(needed)}"
        )
    if machine.free_memory < needed:
        told += (
            f"{model} may need {gigabytes(needed)} of memory and {gigabytes(machine.free_memory)} are free; if this "
            f"machine gets slow or training stops, {free_memory()}",
        )
    return told


def tpu() -> str:
    """What is to be said of a TPU, if this machine has one; empty otherwise."""
    there = any(name in os.environ for name in ("TPU_NAME", "TPU_ACCELERATOR_TYPE", "COLAB_TPU_ADDR"))
    if not there and not any(Path(path).exists() for path in ("/dev/accel0", "/dev/vfio/0")):
        return ""
    return "the TPU of this machine is not used, the kit trains on GPUs and processors; choose a GPU instead"


def check_connections(peers: Sequence[str], *, page_answers: bool) -> None:
    """Raise UserError, with what may be the reason, if a TCP connection to none of these peers comes about.

    :param peers: multiaddresses
    :param page_answers: whether the coordinator's page answers now, as when `clock_skew` is known: the network works
    """
    if in_own_loop(answering(peers, grace=0.0)):
        return
    if own_address() is None:
        raise UserError("this machine has no network; connect it and try again")
    if hosted() == "kaggle" and not page_answers:
        raise UserError(
            "nobody in this run answers; switch on 'Internet' in the settings of this notebook (Kaggle asks for a "
            "confirmed phone number), and if it is on already, ask the organizer whether the run is up"
        )
    try:
        host, port = host_and_port(peers[0])
        if not host.isprintable():
            raise ValueError
    except ValueError:
        raise UserError(
            "the invitation holds an address that cannot be read; ask the organizer for a new one"
        ) from None
    if page_answers:
        raise UserError(
            f"the run's page answers, but nobody answers at {host}, port {port}: a firewall may let only web pages "
            "through, as in schools and companies; try another network, such as a phone's, or ask who runs this one to "
            f"allow outgoing TCP connections to port {port}; if others cannot join either, tell the organizer"
        )
    raise UserError(
        f"nobody answers at {host}, port {port}; ask the organizer whether the run is up, and if it is, try another "
        "network: this one may block the connection"
    )


def clock_skew(url: str) -> float | None:
    """Seconds by which this machine's clock is at least ahead (negative: behind) of the one at a coordinator's URL.

    Its answers tell their time in whole seconds, so up to two seconds remain unseen; none if it does not tell.
    """
    sent = time.time()
    try:
        with requests.get(f"{url.rstrip('/')}/api/run", timeout=CLOCK_SECONDS, stream=True) as answer:
            received = time.time()
            there = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (requests.RequestException, KeyError, ValueError, OverflowError):
        return None
    return skew_between(sent, there, received)


def skew_between(sent: float, there: float, received: float) -> float:
    """The least skew that explains an answer dated `there` (the server renews its date once a second)."""
    ahead, behind = sent - (there + 2.0), received - there
    if ahead <= 0.0 <= behind:
        return 0.0
    return ahead if ahead > 0.0 else behind


def check_clock(skew: float) -> str | None:
    """What is to be said about a clock that is so many seconds ahead; raises UserError if it is too wrong to train.

    Records of the swarm expire by their author's clock: progress lives for 15 s (`TIME_TO_LIVE` of the tracker) and is
    renewed every 4 s. Whoever is 15 s behind is never seen and trains for himself alone; whoever is 15 s ahead sees
    nobody. With 12 s either way a volunteer still took part in every step, with 16 s in none. Two volunteers may be
    wrong in opposite directions, so half of that is worth a warning. Contributions, which live for an hour, are safe.
    """
    if abs(skew) <= TOLERATED_SKEW:
        return None
    what = f"the clock of this machine is {abs(skew):.0f} seconds {'ahead' if skew > 0 else 'behind'}"
    fix = "let the system set it by itself (in its date and time settings, or with `sudo timedatectl set-ntp true`)"
    if hosted():
        fix = "disconnect this runtime and start a new one"
    if abs(skew) > LARGEST_SKEW:
        raise UserError(f"{what}, so it and the others would not find each other; {fix}, then join again")
    return f"{what}, which some of the others may not tolerate; {fix}"


def cores() -> int:
    """The cores that this process may use: a container or `taskset` may grant fewer than the machine has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [share for folder in _cgroups("cpu") if (share := _cpu_share(folder)) is not None]
    return max(1, min([allowed, *map(math.ceil, quotas)]))


def _cpu_share(folder: Path) -> float | None:
    """Cores' worth of time that a control group grants, if it sets a limit."""
    try:
        if (folder / "cpu.max").exists():  # cgroup v2
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or `max`
        return None


def free_bytes() -> int:
    """Of memory that this process may still take."""
    return _memory()[1]


def _memory() -> tuple[int, int]:
    """Bytes in all and available."""
    machine = psutil.virtual_memory()
    total, free = int(machine.total), int(machine.available)
    allowed, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if allowed != resource.RLIM_INFINITY:
        total, free = min(total, allowed), min(free, allowed - int(psutil.Process().memory_info().data))
    for folder in _cgroups("memory"):
        for limit_file, used_file, cache in (
            ("memory.max", "memory.current", "inactive_file"),  # cgroup v2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            try:
                limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # no such file, or `max`
                continue
            # What of files is only cached gives way to whoever needs the memory.
            total, free = min(total, limit), min(free, limit - used + int(statistics.get(cache, 0)))
    return total, max(0, free)


def _cgroups(controller: str) -> list[Path]:
    """The folders of the control groups that this process is in, inner ones first, as far as they can be seen."""
    try:
        lines = [line.split(":", 2) for line in _PROC_CGROUP.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in lines:
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUP_ROOT / controller if controllers else _CGROUP_ROOT
        # Within a container the path may be that of the host, and the container's own group lies at the root.
        own = root / path.lstrip("/")
        found += [folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder.is_dir()]
    return found


def _gpus() -> tuple[Gpu, ...]:
    """NVIDIA's GPUs that this process may use, without loading torch; none where their driver is missing."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return ()
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    query += [f"--id={visible}"] if visible else []
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=NVIDIA_SECONDS, check=True).stdout
        rows = [line.rsplit(",", 2) for line in told.splitlines()]
        return tuple(Gpu(name.strip(), int(total) << 20, int(free) << 20) for name, total, free in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def chosen(gpus: Sequence[Gpu], devices: str) -> list[Gpu]:
    """The GPUs that are to train."""
    if devices in ("auto", "cuda"):
        return list(gpus)
    numbers = [int(name.partition(":")[2]) for name in devices.split(",") if name.startswith("cuda")]
    return [gpus[number] for number in numbers if number < len(gpus)]


def _replicas(gpus: Sequence[Gpu], devices: str) -> int:
    """How many of them stand in the machine's memory."""
    on_processor = devices.split(",").count("cpu")
    return on_processor if gpus or on_processor else 1


def _check_gpus(gpus: Sequence[Gpu], parameters: int) -> tuple[str, ...]:
    """What is said of those that will be left out; raises UserError if all would be."""
    needed = gpu_memory_needed(parameters)
    full = [gpu for gpu in gpus if gpu.free < needed]
    if not full:
        return ()
    what = (
        f"the model of this run ({_millions(parameters)} parameters) needs {gigabytes(needed)} of the GPU's memory and "
        f"{gigabytes(full[0].free)} of {gigabytes(full[0].memory)} are free"
    )
    if len(full) == len(gpus):
        raise UserError(f"{what}; end what else uses the GPU, or train with the device 'cpu'")
    return (f"{len(full)} of {len(gpus)} GPUs will hardly do: {what}; end what else uses the GPU",)


def more_memory(needed: int) -> str:
    """What helps where a machine has less in all."""
    match hosted():
        case "colab":
            return "choose a runtime with more in Colab's menu Runtime, Change runtime type (High-RAM)"
        case "kaggle":
            return "choose another accelerator in the settings of this notebook; some come with more memory"
    return f"join with one that has {math.ceil(1.25 * needed / 1e9)} GB or more"


def free_memory() -> str:
    """What helps where others use it."""
    if hosted():
        return "restart the runtime, so that other cells' memory is free"
    return "close other programs"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:.0f} million" if parameters >= 10_000_000 else f"{parameters / 1e6:.1f} million"
