"""How a budget is shared by addresses."""

from dedloc_kit.dashboard.http.fair_pool import Shares, household


def test_one_address_may_have_everything_as_long_as_nobody_else_asks() -> None:
    shares = Shares[str](3)
    assert [shares.add("a", holder) for holder in ("a1", "a2", "a3")] == [None] * 3
    assert not shares.has_room("a")
    assert shares.has_room("b")
    assert shares.add("b", "b1") == "a1", "the first of who has most"
    assert shares.add("a", "a4") == "a2"
    assert list(shares) == ["a3", "b1", "a4"]


def test_addresses_end_up_with_equal_shares() -> None:
    shares = Shares[str](6)
    for number in range(100):
        for address in ("a", "b"):
            shares.add(address, f"{address}{number}")
    for number in range(2):
        assert shares.has_room("c")
        shares.add("c", f"c{number}")
    assert not shares.has_room("c")
    assert sorted(holder[0] for holder in shares) == list("aabbcc")


def test_what_is_given_back_others_may_have() -> None:
    shares = Shares[str](1)
    shares.add("a", "a1")
    assert not shares.has_room("b"), "who has one does not have more than one"
    shares.discard("a1")
    shares.discard("a1")
    assert shares.add("b", "b1") is None
    assert len(shares) == 1


def test_a_household_has_one_address() -> None:
    assert household("192.0.2.7") == household("::ffff:192.0.2.7") == "192.0.2.7"
    assert household("2001:db8::1") == household("2001:db8::ffff:1") != household("2001:db8:0:1::1")
    assert household("fe80::1%eth0") == household("fe80::2")
    assert household("<b>") == household("") == ""
