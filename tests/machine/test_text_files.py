"""Files that people write are read as their editors leave them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.access.own_code import personal_code
from dedloc_kit.cli.commands.api import read_key
from dedloc_kit.client import fetch_invitation
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.classes import names_of
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.steering.webhook import webhook_address
from tests.invitations import invited
from tests.tiny import tiny_run

RUN = """
name = "x"
global_batch = 64
task = {name = "albert"}
data = {train = [{dataset = "us/texts"}]}
optimizer = {warmup_steps = 1, total_steps = 10}
"""
KEY = "a-key-of-many-letters"
HOOK = "https://chat.example/a"
INVITATION = invited(tiny_run()).model_dump_json()


def names(path: Path) -> Any:
    return names_of(Source(dataset=str(path.parent)), Shard("none", "json"), "tags", pytest.fail)


READERS: dict[str, tuple[str, Callable[[Path], Any], Any]] = {
    "run.toml": (RUN, lambda path: load_run(path).name, "x"),
    "overrides.toml": ("global_batch = 8", lambda path: load_run(path.with_name("run.toml"), path).global_batch, 8),
    "key": (KEY, read_key, KEY),
    "hook": (HOOK, webhook_address, HOOK),
    "code": ("a-code", lambda path: personal_code("none", file=path, ask=False), "a-code"),
    "invitation.json": (INVITATION, lambda path: fetch_invitation(str(path)).run_id, tiny_run().run_id),
    "labels.json": ('{"tags": ["O"]}', names, ["O"]),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, name: str, encoding: str) -> None:
    text, read, expected = READERS[name]
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / name).write_bytes(f"{text.strip()}\r\n".encode(encoding))
    assert read(tmp_path / name) == expected


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("hook", "labels.json")])
def test_a_file_without_an_end_is_refused(tmp_path: Path, name: str) -> None:
    _, read, _ = READERS[name]
    (tmp_path / "run.toml").write_text(RUN)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="more than 16 MB"):
        read(path)
