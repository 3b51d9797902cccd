"""Plays systemd for one unit: `unshare --mount python tests/sandbox.py UNIT FOLDER PROGRAM [ARGUMENT...]`, as root.

Of what the unit takes away it takes away the same, by the same means of the kernel: all writing but in FOLDER, devices,
privileges, system calls. (Homes stay: the interpreter of a developer may live in one.)
"""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

ALLOW, EPERM = 0x7FFF0000, 0x00050001
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def options(unit: Path, name: str) -> list[str]:
    """The values of an option, one for each time that it is given."""
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def system_calls(unit: Path) -> set[str]:
    """Those that the unit leaves."""
    allowed: set[str] = set()
    for line in options(unit, "SystemCallFilter"):
        names = set().union(*map(members, line.removeprefix("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def members(group: str) -> set[str]:
    """The system calls in a group of systemd's, or the one of this name."""
    if not group.startswith("@"):
        return {group}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    names = [line.strip() for line in listed.stdout.splitlines()[1:]]
    return set().union(*(members(name) for name in names if name and not name.startswith("#")))


def close_files(folder: Path) -> None:
    """Leave nothing to write to but this folder, a /tmp of its own and shared memory."""
    mount("--make-rprivate", "/")
    mount("--bind", str(folder), str(folder))
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in dict.fromkeys(points):
        if point != str(folder) and not point.startswith(("/proc", "/dev")):
            subprocess.run(
                ["mount", "-o", "remount,bind,ro", point], capture_output=True, check=False
            )  # some are hidden
    devices, temporary = fresh(folder / ".dev"), fresh(folder / ".tmp")
    for name in (*DEVICES, "shm"):
        (devices / name).mkdir() if name == "shm" else (devices / name).touch()
        mount("--bind", f"/dev/{name}", str(devices / name))
    if folder.is_relative_to("/tmp"):
        (inside := temporary / folder.relative_to("/tmp")).mkdir(parents=True)
        mount("--bind", str(folder), str(inside))
    mount("--move", str(devices), "/dev")
    mount("--move", str(temporary), "/tmp")


def fresh(folder: Path) -> Path:
    """An empty file system, to be moved to its place when it is furnished."""
    folder.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "none", str(folder))
    return folder


def mount(*arguments: str) -> None:
    subprocess.run(["mount", "--no-mtab", *arguments], check=True)


def filter_system_calls(allowed: set[str]) -> None:
    """From now on, for this process and all that come from it."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(EPERM)))
    for name in allowed:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            library.seccomp_rule_add(rules, ctypes.c_uint32(ALLOW), number, 0)
    if library.seccomp_load(rules):
        raise SystemExit("the system calls could not be filtered")


if __name__ == "__main__":
    unit, folder, *program = sys.argv[1:]
    allowed = system_calls(Path(unit)) | {"capset"}  # for the program that drops the capabilities after us
    close_files(Path(folder))
    filter_system_calls(allowed)
    drop = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    os.execvp(drop[0], [*drop, *program])
