"""What people type and read, and what programs ask for, written down: every change of it shows in a commit.

    python -m tests.golden        # write the files anew; read the difference before you commit it

- `help/COMMAND.txt`: `--help` of each command
- `functions.txt`: the functions of `dedloc_kit`, with their arguments and documentation
- `fingerprints.json`: of each recipe, and of its small form
- `openapi.json`, `api.json`: the description of a run's page, and its answers about a run of three steps
- `invitation.json`: the fields of an invitation
- `docs/reference.md`: see `reference`

The notebooks are files of their own (`notebooks/`), which a test compares with their source.
"""

import inspect
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests

import dedloc_kit
from dedloc_kit.cli.main import main
from dedloc_kit.cli.table import COMMANDS, Command
from dedloc_kit.config.loading import load_run
from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.record import PEER_ID
from dedloc_kit.resources import recipe, recipes
from dedloc_kit.version import __version__
from tests.dashboard.runs import RUN, fill
from tests.golden import reference
from tests.hang import HANG
from tests.invitations import invited

FOLDER = Path(__file__).parent
_SECONDS_OF_TODAY = 1_500_000_000
_ENDLESS = "/api/events"


def files() -> dict[str, str]:
    """The text of each file by its path below `FOLDER`."""
    texts = {f"help/{name}.txt": text for name, text in _helps()}
    texts["functions.txt"] = _functions()
    texts["fingerprints.json"] = _json(dict(_fingerprints()))
    texts["invitation.json"] = _json(_shape(json.loads(invited(RUN).model_dump_json())))
    description, answers = _page()
    return texts | {"openapi.json": _json(description), "api.json": _json(answers)}


def written() -> dict[str, str]:
    """The same as they lie in `FOLDER`."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in (".txt", ".json"))
    return {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in found}


def reference_text() -> str:
    """`reference.FILE` as it should be."""
    return reference.reference(list(_helps(reference.WIDE)))


def write() -> None:
    reference.FILE.write_text(reference_text(), encoding="utf-8")
    found = files()
    for path in written():
        (FOLDER / path).unlink()
    for path, text in found.items():
        (FOLDER / path).parent.mkdir(exist_ok=True)
        (FOLDER / path).write_text(text, encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _helps(columns: int = 100) -> Iterator[tuple[str, str]]:
    """Of each command and of those below it."""

    def below(names: tuple[str, ...], commands: Iterable[Command]) -> Iterator[tuple[str, str]]:
        said = io.StringIO()
        with suppress(SystemExit), redirect_stdout(said):
            main([*names, "--help"])
        yield "-".join(["dedloc", *names]), said.getvalue()
        for command in commands:
            yield from below((*names, command.name), command.below)

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield from list(below((), chain.from_iterable(COMMANDS.values())))
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _functions() -> str:
    """Their arguments with defaults, and their documentation."""
    texts = []
    for name in dedloc_kit.__all__:
        if inspect.isfunction(function := getattr(dedloc_kit, name)):
            parameters = inspect.signature(function).parameters.values()
            given = ", ".join(
                f"{each.name}={each.default!r}" if each.default is not each.empty else each.name for each in parameters
            )
            texts.append(f"{name}({given})\n\n{inspect.getdoc(function)}\n")
    return "\n\n".join(texts)


def _fingerprints() -> Iterator[tuple[str, str]]:
    for name in sorted(recipes()):
        smoke = recipe(name) / "smoke.toml"
        yield name, load_run(recipe(name) / "run.toml").fingerprint
        if smoke.is_file():
            yield f"{name}, small", load_run(recipe(name) / "run.toml", smoke).fingerprint


def _shape(value: Any) -> Any:
    """Names of fields with their types: keys and signatures are others each time."""
    match value:
        case dict():
            return {name: _shape(each) for name, each in value.items()}
        case list():
            return [_shape(each) for each in value[:1]]
    return type(value).__name__


def _page() -> tuple[Any, dict[str, Any]]:
    """The description of a run's page, and the answer at each of its paths that needs nothing else."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / INVITATION_FILE).touch()  # a run was launched here
        fill(folder / "ledger.sqlite")
        page = Dashboard(RUN, folder / "ledger.sqlite", organizer=organizer.routes(folder, RUN.fingerprint))
        page.entrance.give_out(invited(RUN))
        page.start()
        try:
            description = requests.get(page.url + "/api/openapi.json", timeout=HANG).json()
            paths = [path for path, found in description["paths"].items() if "get" in found and "{" not in path]
            answers = {path: _answer(page.url, path) for path in paths if path != _ENDLESS}
        finally:
            page.stop()
    return _outline(description), answers


def _outline(description: Any) -> dict[str, Any]:
    """What a description says whatever library wrote it: parameters, kinds of answers, and the fields of models."""
    paths = {
        f"{method} {path}": {
            "parameters": [f"{each['name']}{'' if each['required'] else '?'}" for each in found.get("parameters", ())],
            "answers": {status: _kinds(each.get("content", {})) for status, each in found["responses"].items()},
        }
        for path, methods in description["paths"].items()
        for method, found in methods.items()
    }
    models = {
        name: {field: _kind(each) for field, each in found.get("properties", {}).items()} or _kind(found)
        for name, found in sorted(description["components"]["schemas"].items())
    }
    return {"paths": paths, "models": models}


def _kinds(content: Any) -> str:
    return ", ".join(f"{kind} {_kind(each.get('schema', {}))}".strip() for kind, each in content.items())


def _kind(schema: Any) -> str:
    match schema:
        case {"$ref": str(name)}:
            return name.rpartition("/")[2]
        case {"anyOf": list(some)} | {"oneOf": list(some)} | {"prefixItems": list(some)}:
            return " | ".join(map(_kind, some))
        case {"enum": list(some)}:
            return " | ".join(map(repr, some))
        case {"type": "array"}:
            return f"[{_kind(schema.get('items', schema))}]" if "items" in schema else "[]"
        case {"type": "object", "additionalProperties": dict(each)}:
            return f"{{{_kind(each)}}}"
    return str(schema.get("type", ""))


def _answer(url: str, path: str) -> Any:
    answer = requests.get(url + path, timeout=HANG)
    if answer.headers["content-type"].startswith("application/json"):
        return _settled(answer.json(), url) if "invitation" not in path else _shape(answer.json())
    return {"status": answer.status_code, "content-type": answer.headers["content-type"]}


def _settled(value: Any, url: str) -> Any:
    """Without what is another each time: the time of now, peers, this kit's build, and the page's address."""
    match value:
        case dict():
            return {name: _settled(each, url) for name, each in value.items()}
        case list():
            return [_settled(each, url) for each in value]
        case float() | int() if value > _SECONDS_OF_TODAY:
            return "TIME"
        case float():
            return round(value, 9)
        case str() if re.fullmatch(PEER_ID, value):
            return "PEER"
        case str():
            value = re.sub(r"\+h[0-9a-f]+|(?<=#sha256=)[0-9a-f]+", "", value)
            return value.replace(url, "URL").replace(__version__, "VERSION")
    return value
