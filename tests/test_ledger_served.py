"""The ledger of a serving swarm keeps what each server has computed, whatever becomes of the organizer's machine."""

import sqlite3
from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.ledger import served
from dedloc_kit.ledger.ledger import Ledger
from dedloc_kit.ledger.served import ServingLedger, credit
from dedloc_kit.serving.offer import Serving
from dedloc_kit.serving.receipts import Receipt

RUN = "toy-0123456789abcdef"
NO_LIMIT = 2**60


def offer(**changed: object) -> Serving:
    values = {
        **{"run_id": RUN, "version": "ab" * 32, "form": "float32", "begin": 0, "end": 4, "state": "online"},
        **{"prompts": 100.0, "client_mode": False, "addresses": (), "device": "cpu", "name": "ada", "time": 1.0},
    }
    return Serving.parse({**values, **changed})


def receipt(tokens_layers: int, session: str = "c1", server_session: str = "51") -> Receipt:
    return Receipt(
        run_id=RUN,
        server="server",
        server_session=server_session,
        session=session,
        tokens_layers=tokens_layers,
        time=1.0,
    )


def test_only_what_is_new_in_a_receipt_counts_also_after_a_restart(tmp_path: Path) -> None:
    now = [1000.0]
    ledger = ServingLedger(tmp_path, lambda: now[0])
    assert ledger.count("server", offer(), "client", receipt(100), NO_LIMIT) == 100
    assert ledger.count("server", offer(), "client", receipt(100), NO_LIMIT) == 0
    ledger.close()
    now[0] = 2000.0
    ledger = ServingLedger(tmp_path, lambda: now[0])
    assert ledger.count("server", offer(name="lovelace", team="math"), "client", receipt(130), NO_LIMIT) == 30
    assert ledger.count("server", offer(name="lovelace", team="math"), "client", receipt(90), NO_LIMIT) == 0
    (found,) = credit(tmp_path)
    assert (found.name, found.team, found.tokens_layers) == ("lovelace", "math", 130)
    assert (found.since, found.last) == (1000.0, 2000.0)
    ledger.close()


def test_another_session_of_either_side_counts_from_nothing(tmp_path: Path) -> None:
    ledger = ServingLedger(tmp_path)
    for each in (receipt(100), receipt(20, session="c2"), receipt(3, server_session="52")):
        ledger.count("server", offer(), "client", each, NO_LIMIT)
    ledger.count("server", offer(), "another client", receipt(4000), NO_LIMIT)
    ledger.count("another server", offer(), "client", receipt(50_000), NO_LIMIT)
    assert [(found.peer, found.tokens_layers) for found in credit(tmp_path)] == [
        ("another server", 50_000),
        ("server", 4123),
    ]
    ledger.close()


def test_what_is_above_the_most_waits_for_a_later_receipt(tmp_path: Path) -> None:
    ledger = ServingLedger(tmp_path)
    assert ledger.count("server", offer(), "client", receipt(100), 40) == 40
    assert ledger.count("server", offer(), "client", receipt(110), 50) == 50
    assert ledger.count("server", offer(), "client", receipt(110), 50) == 20
    assert credit(tmp_path)[0].tokens_layers == 110
    ledger.close()


def test_so_many_receipts_of_a_server_are_remembered_and_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "MAX_RECEIPTS", 2)
    now = [0.0]
    ledger = ServingLedger(tmp_path, lambda: now[0])
    given = [ledger.count("server", offer(), "client", receipt(1, session=f"c{each}"), NO_LIMIT) for each in range(4)]
    assert given == [1, 1, 0, 0]
    assert ledger.count("server", offer(), "client", receipt(5, session="c0"), NO_LIMIT) == 4
    now[0] = served.RECEIPT_SECONDS + 1.0
    assert ledger.count("server", offer(), "client", receipt(1, session="c9"), NO_LIMIT) == 1
    ledger.close()
    assert sqlite3.connect(tmp_path / served.LEDGER_FILE).execute("SELECT count(*) FROM receipts").fetchone() == (1,)


def test_a_folder_without_such_a_ledger_has_no_credit(tmp_path: Path) -> None:
    assert credit(tmp_path) == []
    Ledger(tmp_path / served.LEDGER_FILE).close()
    assert credit(tmp_path) == []
    with pytest.raises(UserError, match="something else"):
        ServingLedger(tmp_path)
