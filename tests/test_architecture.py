"""Imports go one way, and a cheap import stays cheap."""

import ast
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

import dedloc_kit

PACKAGE = Path(dedloc_kit.__file__).parent

# A part (a module or a folder of the package) may import the parts in the lines above its own, and itself.
ORDER = (
    {"version", "errors", "validation"},
    {"keys", "machine", "resources", "pretrained"},
    {"config", "distribution", "regions", "fetching"},
    {"records"},
    {"serving", "pipeline_state", "experts_state"},
    {"events", "known_peers", "hub", "pipe"},
    {"client", "display", "bucket"},
    {"learning.types"},
    {"learning.data", "learning.train"},
    {"blocks", "experts"},
    {"learning.task"},
    {"learning.models"},
    {"learning.tasks", "ledger"},
    {"learning.evaluate", "steering"},
    {"export"},
    {"access"},
    {"swarm"},
    {"expert_runtime"},
    {"coordinator"},
    {"roles"},
    {"worker"},
    {"session", "dashboard", "inference"},
    {"api"},
    {"notebook", "mirror"},
    {"organizer"},
    {"cli"},
)
# The same inside swarm/, for its folders and modules.
ROOMS = (
    {"incidents"},
    {"network"},
    {"p2p", "trust"},
    {"consensus"},
    {"chain", "allreduce"},
    {"audits", "gathering"},
    {"directory", "transfer"},
    {"membership", "averaging"},
    {"rounds", "remote"},
    {"serving", "pipeline", "experts"},
    {"peer", "observer"},
)
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
INNER = {
    "swarm.allreduce": ("encoding", "reduction"),
    "swarm.serving": ("server", "client", "layers"),
    "blocks": ("weights", "plans", "adapters"),
    "learning.train": ("optim", "state", "computing", "gradients"),
    "learning.data": ("sources", "text", "tokenizers", "pictures"),
}
"""The rooms within a room, in their order. What lies beside them may know all, and be known by all."""
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}
FOUNDATION = {
    *("version", "errors", "validation", "keys", "machine", "resources", "config", "distribution", "records", "events"),
    *(
        "known_peers",
        "hub",
        "bucket",
        "client",
        "display",
        "regions",
        "steering",
        "access",
        "serving",
        "pipeline_state",
        "experts_state",
    ),
}
ROLES = {"swarm", "ledger", "expert_runtime", "coordinator", "roles"}
SURFACES = {"session", "dashboard", "notebook", "mirror", "organizer", "cli"}
HEAVY = {"torch", "hivemind"}
# Readers of the ledger; every other way from a surface to a role goes through the worker.
ALLOWED_SHORT_CUTS = {("dashboard", "ledger"), ("cli", "ledger")}


@cache
def parsed(source: str) -> ast.Module:
    """Every module is looked at for several reasons, and parsed once."""
    return ast.parse(source)


@cache
def sources() -> dict[Path, str]:
    """Of all modules. One test looks at them all: a test for each would be collected by each process."""
    return {path: path.read_text(encoding="utf-8") for path in modules()}


def imported_modules(source: str) -> Iterator[str]:
    """Full names of what a module imports anywhere, inside functions too; `from a import b` counts as `a.b`."""
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert level == 0, f"line {node.lineno}: a relative import; write dedloc_kit. ..."
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
                yield from (str(value.value) for value in node.args if isinstance(value, ast.Constant))


def faults(part: str, source: str) -> list[str]:
    """What a module of the part imports against the rules."""
    found = []
    for name in imported_modules(source):
        library, *rest = name.split(".")
        if library == "hivemind" and part != "swarm":
            found.append(f"{part} imports {name}: only dedloc_kit.swarm may")
        if library in HEAVY and part in FOUNDATION | SURFACES:
            found.append(f"{part} imports {name}: it has to work without")
        imported = place_of(rest)
        if library != "dedloc_kit" or imported not in LEVEL or imported == part:
            continue
        if LEVEL[imported] >= LEVEL.get(part, 0):
            found.append(f"{part} imports {name}: against the order")
        elif part in SURFACES and imported in ROLES and (part, imported) not in ALLOWED_SHORT_CUTS:
            found.append(f"{part} imports {name}: surfaces reach a role only through the worker")
    return found


def room_faults(house: str, floors: Mapping[str, int], room: str, source: str) -> list[str]:
    """What a module in a room of a house imports from rooms that it may not know."""
    within = f"dedloc_kit.{house}."
    names = (name.removeprefix(within) for name in imported_modules(source) if name.startswith(within))
    others = {name.split(".")[0] for name in names} - {room}
    return [f"{room} imports {other}: against the order" for other in others if floors.get(other, -1) >= floors[room]]


def part_of(path: Path) -> str:
    return place_of(path.relative_to(PACKAGE).with_suffix("").parts)


def place_of(names: Sequence[str]) -> str:
    """The part in which something lies, given its names below the package; of learning/ each folder is one."""
    return ".".join(names[: 2 if names[:1] in (["learning"], ("learning",)) else 1])


def modules() -> list[Path]:
    empty = {PACKAGE / "__init__.py", PACKAGE / "learning" / "__init__.py"}
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path not in empty]


def test_a_room_of_the_swarm_knows_only_the_rooms_before_it() -> None:
    swarm = PACKAGE / "swarm"
    inside = {path: source for path, source in sources().items() if path.is_relative_to(swarm)}
    rooms = {path: path.relative_to(swarm).parts[0].removesuffix(".py") for path in inside}
    assert set(rooms.values()) - {"__init__"} == FLOOR.keys()
    found = {p: room_faults("swarm", FLOOR, rooms[p], source) for p, source in inside.items() if rooms[p] in FLOOR}
    assert len(found) > 100
    assert not any(found.values()), {path: each for path, each in found.items() if each}


@pytest.mark.parametrize("house", INNER)
def test_rooms_within_a_room_know_only_those_before_them(house: str) -> None:
    folder = PACKAGE.joinpath(*house.split("."))
    floors = {room: floor for floor, room in enumerate(INNER[house])}
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == floors.keys()
    inside = {p: p.relative_to(folder).parts[0] for p in folder.rglob("*.py") if p.parent != folder}
    found = {path: room_faults(house, floors, room, sources()[path]) for path, room in inside.items()}
    assert not any(found.values()), {path: each for path, each in found.items() if each}


def test_the_check_finds_a_room_that_knows_too_much() -> None:
    assert room_faults("swarm", FLOOR, "membership", "from dedloc_kit.swarm.averaging.averager import Averager")
    assert room_faults("swarm", FLOOR, "network", "def f():\n    from dedloc_kit.swarm import directory")
    right = "import os\nfrom dedloc_kit.swarm.rounds import timing\nfrom dedloc_kit.swarm.network import gate"
    assert not room_faults("swarm", FLOOR, "rounds", right)


def test_every_part_of_the_package_has_a_place_in_the_order() -> None:
    assert {part_of(path) for path in modules()} <= LEVEL.keys()


def test_imports_go_one_way() -> None:
    found = {path: faults(part_of(path), source) for path, source in sources().items()}
    assert not any(found.values()), {path: each for path, each in found.items() if each}


def terminal_writes(source: str) -> list[str]:
    """What in a module reaches the terminal without being cleaned by `display.console`."""
    found = [name for name in imported_modules(source) if name in ("rich.console.Console", "rich.print")]
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                found.append(f"line {node.lineno}: print")
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" as stream):
                found.append(f"line {node.lineno}: sys.{stream}")
    return found


def test_one_module_alone_writes_to_the_terminal() -> None:
    found = {path: terminal_writes(source) for path, source in sources().items()}
    writers = {path: each for path, each in found.items() if each}
    assert writers.keys() == {PACKAGE / "display" / "console.py"}, writers


MAX_PARAMETERS = 8
"""Of a constructor: facts that travel together are one record."""
PLAIN = {"str", "int", "float", "bool", "bytes", "tuple", "None"}


def crowded_constructors(source: str) -> set[str]:
    """Classes whose constructor takes more than that: what `__init__` names, or what a dataclass has to be given.

    A dataclass of nothing but plain values is a record. So is a pydantic model: it checks what comes from elsewhere.
    """
    found = set()
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        counts = [
            len([*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]) - 1
            for item in node.body
            if isinstance(item, ast.FunctionDef) and item.name == "__init__"
        ]
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            names = {name.id for f in fields for name in ast.walk(f.annotation) if isinstance(name, ast.Name)}
            counts += [sum(field.value is None for field in fields)] if names - PLAIN else []
        if max(counts, default=0) > MAX_PARAMETERS:
            found.add(node.name)
    return found


def test_no_constructor_takes_more_than_eight_parameters() -> None:
    found = {path: crowded_constructors(source) for path, source in sources().items()}
    assert not any(found.values()), {path: each for path, each in found.items() if each}


@pytest.mark.parametrize(
    ("body", "crowded"),
    [
        ("def __init__(self, a, b, c, d, e, f, g, *, h): ...", False),
        ("def __init__(self, a, b, c, d, e, f, g, *, h, i=1): ...", True),
        ("\n ".join(f"{name}: str" for name in "abcdefghi"), False),
        ("\n ".join(f"{name}: Node" for name in "abcdefghi"), True),
        ("\n ".join(f"{name}: Node" for name in "abcdefgh") + "\n i: Node = none", False),
    ],
)
def test_the_check_counts_what_a_constructor_takes(body: str, crowded: bool) -> None:
    assert crowded_constructors(f"@dataclass(frozen=True)\nclass A:\n {body}") == ({"A"} if crowded else set())


def reaches_in(source: str) -> list[str]:
    """Attributes of objects that an object holds, set by it: what is held is asked to change by a method of its own."""
    targets = [
        target
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    each = [inner for target in targets for inner in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [
        ast.unparse(target)
        for target in each
        if isinstance(target, ast.Attribute) and ast.unparse(target.value).startswith("self.")
    ]


def test_no_object_sets_an_attribute_of_one_that_it_holds() -> None:
    of_libraries = {"self._server.should_exit", "self._pause.description", "self._pause.disabled"}
    of_libraries |= {
        "self._leave.disabled",
        "self._buttons.layout.display",
        "self._send.disabled",
        "self._stop.disabled",
        "self._box.value",
    }
    found = {path: set(reaches_in(source)) - of_libraries for path, source in sources().items()}
    assert not any(found.values()), {path: each for path, each in found.items() if each}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("self._rounds.members = 1", ["self._rounds.members"]),
        ("self.a, self.state.step = 1, 2", ["self.state.step"]),
        ("self._donor.asked += 1", ["self._donor.asked"]),
        ("self._sizes[path].end = 1", ["self._sizes[path].end"]),
        ("self.step: int = found.step", []),
    ],
)
def test_the_check_finds_who_reaches_in(line: str, found: list[str]) -> None:
    assert reaches_in(line) == found


@pytest.mark.child
def test_the_package_itself_imports_nothing_before_somebody_joins() -> None:
    assert loaded_by("import dedloc_kit") - loaded_by("pass") == {"dedloc_kit"}


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("config", "from dedloc_kit.records.record import Record"),
        ("learning.data", "from dedloc_kit.learning import train"),
        ("records", "import torch"),
        ("validation", "from hivemind.dht import DHT"),
        ("volunteer", "import hivemind"),
        ("learning.tasks", "def f():\n    from dedloc_kit.swarm import node"),
        ("cli", "import dedloc_kit.roles.volunteer"),
        ("session", "from dedloc_kit.ledger import Ledger"),
        ("notebook", "def f():\n    import torch.cuda"),
        ("dashboard", "import importlib\nimportlib.import_module('dedloc_kit.coordinator.coordinator')"),
    ],
)
def test_the_check_finds_a_wrong_import(part: str, source: str) -> None:
    assert faults(part, source)


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("swarm", "import hivemind\nfrom dedloc_kit.learning.tasks import albert"),
        ("coordinator", "from dedloc_kit.ledger import Ledger"),
        ("dashboard", "from dedloc_kit.ledger import Ledger\nfrom dedloc_kit.worker import Worker"),
        ("cli", "from dedloc_kit import __version__, worker"),
        ("learning.train", "import torch\nfrom dedloc_kit.learning.train.optim.lamb import Lamb"),
    ],
)
def test_the_check_accepts_a_right_import(part: str, source: str) -> None:
    assert faults(part, source) == []


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after the statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(json.loads(output.splitlines()[-1]))


@pytest.mark.child
def test_importing_the_package_loads_neither_torch_nor_hivemind_nor_pydantic() -> None:
    assert not loaded_by("import dedloc_kit") & (HEAVY | {"pydantic"})


@pytest.mark.child
def test_importing_the_foundation_and_the_surfaces_loads_neither_torch_nor_hivemind() -> None:
    names = [
        "dedloc_kit." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in modules()
        if part_of(path) in FOUNDATION | SURFACES and path.name not in ("__init__.py", "__main__.py")
    ]
    assert len(names) >= len(FOUNDATION)
    assert not loaded_by(f"import {', '.join(names)}") & HEAVY


@pytest.mark.child
def test_importing_the_package_takes_less_than_one_and_a_half_tenths_of_a_second() -> None:
    # Processor time, the interpreter's own start included: what else the machine is doing does not count.
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "import dedloc_kit"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.15


def test_of_datasets_only_what_every_version_has_is_imported() -> None:
    """Colab has 4.0, with other insides than the version that these tests run with."""
    inner = {
        f"{path.name}: {node.module}"
        for path, source in sources().items()
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("datasets.")
    }
    assert inner <= {"shards.py: datasets.exceptions"}
