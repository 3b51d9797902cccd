"""What was committed to can be shown, in its place; nothing else can."""

import hashlib

import pytest

from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS, Commitment, Opening


def contents(count: int) -> list[bytes]:
    return [f"content {number}".encode() for number in range(count)]


@pytest.mark.parametrize("count", [*range(1, 18), 31, 32, 33, 100])
def test_each_content_is_shown_in_its_own_place_and_in_no_other(count: int) -> None:
    made = contents(count)
    commitment = Commitment(made)
    for number, content in enumerate(made):
        opening = Opening.parse(commitment.opening(number).model_dump())
        assert opening.shows(content, commitment.root)
        assert not opening.shows(content + b".", commitment.root)
        assert not opening.shows(content, Commitment([*made, b"more"]).root)
        for other in range(count):
            elsewhere = opening.model_copy(update={"number": other})
            assert elsewhere.shows(content, commitment.root) is (other == number)


def test_the_root_follows_from_every_content_their_order_and_their_number() -> None:
    made = contents(5)
    roots = {Commitment(each).root for each in (made, made[:4], [*made, b""], made[::-1], [*made[:4], made[3]])}
    assert len(roots) == 5
    assert Commitment(made).root == Commitment(contents(5)).root
    assert all(len(root) == 32 for root in roots)


def test_the_tree_is_the_one_that_others_would_build() -> None:
    def hashed(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(parts)).digest()

    one, two, three = (hashed(b"\x00", hashed(content)) for content in (b"one", b"two", b"three"))
    top = hashed(b"\x01", hashed(b"\x01", one, two), three)
    assert Commitment([b"one", b"two", b"three"]).root == hashed(b"\x02", bytes(7) + b"\x03", top)


def test_a_path_that_is_too_short_too_long_or_of_another_tree_shows_nothing() -> None:
    made = contents(6)
    commitment = Commitment(made)
    opening = commitment.opening(2)
    for path in (opening.path[:-1], (*opening.path, bytes(32)), (), opening.path[::-1]):
        assert not opening.model_copy(update={"path": path}).shows(made[2], commitment.root)
    for count in (5, 7, 8):
        assert not opening.model_copy(update={"count": count}).shows(made[2], commitment.root)
    inner = opening.path[-1]
    assert not Opening(number=0, count=1, path=()).shows(inner, commitment.root), "a node is no content"


def test_what_a_stranger_sends_is_bounded() -> None:
    good = Commitment(contents(3)).opening(1).model_dump()
    for wrong in (
        {"path": [bytes(32)] * 17},
        {"path": [bytes(31)]},
        {"count": MAX_CONTENTS + 1},
        {"count": 0},
        {"number": -1},
        {"number": "1"},
        {"more": 1},
    ):
        with pytest.raises(ValueError, match="Opening"):
            Opening.parse({**good, **wrong})
    assert not Opening.parse({**good, "number": 3}).shows(b"content 2", Commitment(contents(3)).root)


def test_nothing_and_too_much_is_not_committed_to_and_a_content_that_is_not_there_not_opened() -> None:
    for count in (0, MAX_CONTENTS + 1):
        with pytest.raises(ValueError, match=r"from 1 to 65536"):
            Commitment([b""] * count)
    for number in (-1, 3):
        with pytest.raises(ValueError, match="of 3"):
            Commitment(contents(3)).opening(number)
