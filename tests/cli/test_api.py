"""`dedloc api`."""

import re
import threading
from pathlib import Path

import pytest
import requests

from dedloc_kit.api import server
from dedloc_kit.api.generating import Served
from dedloc_kit.cli.commands import api
from dedloc_kit.cli.main import parser
from dedloc_kit.errors import UserError
from tests.api.serving import tiny, tokenizer
from tests.hang import HANG

KEY = "a-key-of-many-letters"


def test_a_model_is_served_with_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, servers = threading.Event(), list[server.Server]()

    class Told(server.Server):
        def run(self) -> None:
            servers.append(self)
            begun.set()
            super().run()

    monkeypatch.setattr(server, "Server", Told)
    monkeypatch.setattr(api, "load", lambda name, at_once: Served(name, tiny(), tokenizer(), at_once))
    (tmp_path / "key").write_text(f"{KEY}\n")
    options = parser().parse_args(["api", "a-model", "--port", "0", "--key-file", str(tmp_path / "key")])
    thread = threading.Thread(target=api.run, args=(options,))
    thread.start()
    assert begun.wait(HANG)
    address = re.search(r"http://127\.0\.0\.1:\d+/v1", capsys.readouterr().out)
    assert address is not None
    url = f"{address[0]}/models"
    assert requests.get(url, timeout=HANG).status_code == 401
    answer = requests.get(url, headers={"Authorization": f"Bearer {KEY}"}, timeout=HANG)
    assert answer.json()["data"][0]["id"] == "a-model"
    servers[0].stop()
    thread.join(HANG)
    assert not thread.is_alive()


def test_a_key_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(UserError, match="cannot be read"):
        api.read_key(path)
    for text in ("", "short", "two words of many letters", "é" * 20):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="must hold one key"):
            api.read_key(path)
    path.write_text(f"  {KEY}\n")
    assert api.read_key(path) == KEY
