"""The organizer's orders: given by several processes, read at every look, never lost to a damaged file."""

import multiprocessing
from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.steering.orders import Decaying, OrderBook, Orders, OrdersInForce


def kick_some(folder: Path, who: str) -> None:
    book = OrderBook(folder)
    for number in range(20):
        book.kick(f"{who}{number}", who)


def test_without_a_file_no_order_holds(tmp_path: Path) -> None:
    assert OrdersInForce(tmp_path).current() == Orders()


def test_orders_are_seen_as_soon_as_they_are_given(tmp_path: Path) -> None:
    book, in_force = OrderBook(tmp_path), OrdersInForce(tmp_path)
    book.pause()
    assert in_force.current().paused
    book.resume()
    assert not in_force.current().paused
    book.announce("Thanks to all!")
    book.kick("QmOne", "Mallory")
    orders = in_force.current()
    assert orders.announcement is not None
    assert orders.announcement.text == "Thanks to all!"
    assert orders.kicked_peers == {"QmOne"}
    book.announce("")
    book.unban("QmOne", "Mallory")
    assert in_force.current() == Orders()


def test_a_finished_run_is_not_paused_and_resume_reopens_it(tmp_path: Path) -> None:
    book = OrderBook(tmp_path)
    book.pause()
    assert book.finish() == Orders(finish=True), "a paused run could not do its last step"
    with pytest.raises(UserError, match="dedloc run resume"):
        book.pause()
    assert book.resume() == Orders()


def test_a_decay_stands_until_the_run_goes_back_to_a_state_from_before_it(tmp_path: Path) -> None:
    book = OrderBook(tmp_path)
    assert book.cooldown(40, after=120).decay == Decaying(steps=40, after=120)
    assert book.rollback(121, 1.0, after=130).decay == Decaying(steps=40, after=120), "its own steps may be in there"
    assert book.rollback(120, 1.0, after=140).decay is None
    book.finish()
    with pytest.raises(UserError, match="dedloc run resume"):
        book.cooldown(40, after=150)
    assert book.read().decay is None


def test_the_log_has_every_order_that_changed_something_newest_first(tmp_path: Path) -> None:
    book = OrderBook(tmp_path)
    assert book.given() == []
    book.pause()
    book.pause()
    book.announce("Half way!")
    book.unban("QmNobody", "")
    (tmp_path / "orders.jsonl").open("a").write('{"half a li')
    assert [(given.order, given.text) for given in book.given()] == [("announce", "Half way!"), ("pause", "")]
    assert [given.order for given in book.given(most=1)] == ["announce"]


@pytest.mark.parametrize("text", ['{"paused": tr', '{"pausd": true}', "\udcff"])
def test_a_damaged_file_is_said_once_and_the_orders_of_before_hold(
    tmp_path: Path, warned: list[str], text: str
) -> None:
    book, in_force = OrderBook(tmp_path), OrdersInForce(tmp_path)
    book.pause()
    assert in_force.current().paused
    (tmp_path / "orders.json").write_bytes(text.encode(errors="surrogateescape"))
    assert in_force.current().paused
    assert in_force.current().paused
    (warning,) = warned
    assert str(tmp_path / "orders.json") in warning
    assert "remove it" in warning
    with pytest.raises(UserError, match="is damaged"):  # or the kicked ones would come back
        book.finish()
    (tmp_path / "orders.json").unlink()
    assert in_force.current() == Orders()


@pytest.mark.parametrize("text", ["x" * 201, "two\nlines", "\x1b[31m"])
def test_what_cannot_be_announced_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="cannot be announced"):
        OrderBook(tmp_path).announce(text)
    assert OrderBook(tmp_path).read() == Orders()


@pytest.mark.child
def test_orders_that_several_processes_give_at_once_all_hold(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=kick_some, args=(tmp_path, who)) for who in ("A", "B")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert len(OrderBook(tmp_path).read().kicked_peers) == 40
    assert len(OrderBook(tmp_path).given()) == 40


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        OrderBook(tmp_path / "none").pause()


def test_why_somebody_was_sent_away_is_kept_with_the_order_and_in_the_log(tmp_path: Path) -> None:
    book = OrderBook(tmp_path)
    book.kick("QmOne", "anna")
    book.kick("QmTwo", "mallory", "it does not show its work (global step 7)", last_passed=5)
    assert [kicked.last_passed for kicked in book.read().kicked] == [None, 5]
    assert [kicked.why for kicked in book.read().kicked] == ["", "it does not show its work (global step 7)"]
    newest, first = book.given()
    assert newest.text == "mallory (QmTwo): it does not show its work (global step 7)"
    assert first.text == "anna (QmOne)"
    with pytest.raises(ValueError, match="why"):
        book.kick("QmThree", "eve", "x" * 161)
