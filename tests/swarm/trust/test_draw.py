"""The draw: the same for all, as often as each computes, and not to be escaped by silence."""

from collections import Counter

import pytest

from dedloc_kit.swarm.trust.draw import CheckedReducer, Contributed, Draw, commit, draw, seed_of_round

SAMPLES = {"a": 640, "b": 320, "c": 32, "d": 8}
ROUND = [Contributed(peer, samples, samples // 8) for peer, samples in SAMPLES.items()]
OWNERS = ["a", "b", "a", "b", "a"]


def seeds(count: int) -> list[bytes]:
    return [seed_of_round("group", {"a": number.to_bytes(32, "big")}) for number in range(count)]


def drawn(seed: bytes, share: float = 0.1, silent: str = "", standing: str = "abcd") -> Draw:
    return draw(seed, ROUND, OWNERS, standing, silent, share)


def test_all_compute_the_same_draw_whatever_order_they_heard_of_things_in() -> None:
    nonces = {"a": bytes([1] * 32), "b": bytes([2] * 32)}
    seed = seed_of_round("group", nonces)
    assert seed == seed_of_round("group", dict(reversed(nonces.items())))
    for share in (0.1, 1.0):
        assert drawn(seed, share) == draw(seed, ROUND[::-1], OWNERS, ("d", "c", "b", "a"), (), share)
    others = [
        seed_of_round("other", nonces),
        seed_of_round("group", {"a": nonces["b"], "b": nonces["a"]}),
        seed_of_round("group", {"a": nonces["a"]}),
        seed_of_round("groupa", {"b": nonces["b"]}),
    ]
    assert len({seed, *others}) == 5


def test_the_draw_of_a_seed_never_changes() -> None:
    """Peers with different versions of the kit must agree."""
    found = drawn(bytes(32), 1.0)
    checked = {each.author: (each.chunk, "".join(each.checkers[:8])) for each in found.contributions}
    assert checked == {"a": (3, "bbbbbcbb"), "b": (1, "aaaaaaaa"), "c": (0, "baba"), "d": (4, "b")}
    assert found.reducer == CheckedReducer("a", 2, "b")
    assert seed_of_round("group", {"a": bytes(32)}).hex().startswith("18be3fb0fbfd889b")
    assert commit(bytes(32)).hex().startswith("14f63025f860bae1")


def test_each_contribution_is_drawn_as_often_as_the_share_says_and_each_chunk_alike() -> None:
    authors: Counter[str] = Counter()
    chunks: Counter[int] = Counter()
    for seed in seeds(4000):
        found = drawn(seed)
        authors.update(each.author for each in found.contributions)
        chunks.update(each.chunk for each in found.contributions)
    assert all(340 <= authors[peer] <= 460 for peer in SAMPLES), authors
    assert all(250 <= chunks[chunk] <= 390 for chunk in range(5)), chunks
    assert not drawn(bytes(32), 0.0).contributions
    assert len(drawn(bytes(32), 1.0).contributions) == 4


def test_each_recomputes_by_its_samples_of_what_the_others_gave_and_nobody_itself() -> None:
    checks: Counter[str] = Counter()
    for seed in seeds(2000):
        for each in drawn(seed).contributions:
            assert each.author not in each.checkers
            assert len(each.checkers) == SAMPLES[each.author] // 8
            checks.update(each.checkers)
    for peer, samples in SAMPLES.items():
        others = {each: theirs for each, theirs in SAMPLES.items() if each != peer}
        dealt = sum(0.1 * theirs / (sum(SAMPLES.values()) - theirs) for theirs in others.values())
        assert 8 * checks[peer] / (2000 * samples) == pytest.approx(dealt, rel=0.2), peer


def test_among_many_of_all_speeds_each_spends_the_share() -> None:
    members = [Contributed(f"p{number}", 8 * (1 + number % 5), 1 + number % 5) for number in range(40)]
    checks: Counter[str] = Counter()
    for seed in seeds(600):
        for each in draw(seed, members, ["p0"], [each.peer for each in members], (), 0.1).contributions:
            checks.update(each.checkers)
    for speed in range(5):
        mine = sum(checks[f"p{number}"] for number in range(40) if number % 5 == speed)
        assert mine / (600 * 8 * (speed + 1)) == pytest.approx(0.1, rel=0.15)


def test_who_does_not_reveal_its_nonce_is_drawn_for_certain_and_checks_nobody() -> None:
    for seed in seeds(50):
        found = drawn(seed, 0.1, silent="b")
        assert "b" in {each.author for each in found.contributions}
        assert not any("b" in each.checkers for each in found.contributions)
        assert found.reducer is not None
        assert found.reducer.checker != "b"


def test_strangers_and_who_gave_nothing_check_nobody_and_without_anybody_nothing_is_checked() -> None:
    members = [*ROUND, Contributed("e", 0, 0)]
    for seed in seeds(50):
        found = draw(seed, members, OWNERS, "ade", "", 1.0)
        assert {peer for each in found.contributions for peer in each.checkers} <= {"a", "d"}
        assert "e" not in {each.author for each in found.contributions}
    alone = draw(bytes(32), ROUND, ["a"], "a", "", 1.0)
    assert [each.author for each in alone.contributions] == ["b", "c", "d"]
    assert alone.reducer is None
    assert draw(bytes(32), ROUND, ["a"], "", "", 1.0) == Draw((), None)


def test_a_reducer_is_checked_in_each_round_as_often_as_it_has_chunks_by_another() -> None:
    found = [drawn(seed).reducer for seed in seeds(2000)]
    for each in found:
        assert each is not None
        assert OWNERS[each.chunk] == each.reducer != each.checker
    assert sum(each is not None and each.reducer == "a" for each in found) == pytest.approx(1200, abs=100)


def test_what_cannot_be_is_refused() -> None:
    assert commit(bytes(32)) != commit(bytes([1] * 32))
    for nonce in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="a nonce of"):
            commit(nonce)
        with pytest.raises(ValueError, match="a nonce of"):
            seed_of_round("group", {"a": nonce})
    for samples, microbatches in ((-1, 1), (1, -1), (1, 2**16 + 1)):
        with pytest.raises(ValueError, match="samples in"):
            Contributed("a", samples, microbatches)
    for share, owners in ((-0.1, OWNERS), (1.1, OWNERS), (float("nan"), OWNERS), (0.1, [])):
        with pytest.raises(ValueError, match="a share of"):
            draw(bytes(32), ROUND, owners, "a", "", share)
