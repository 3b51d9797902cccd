from dedloc_kit.dashboard.serving.tokens import BUCKET_SECONDS, KEPT, Tokens
from tests.dashboard.served_model import server

NOON = 20_000 * 86_400.0


def test_what_servers_have_computed_since_they_were_first_seen_is_counted() -> None:
    tokens = Tokens()
    tokens.add([server(0, served=500)], NOON)
    tokens.add([server(0, served=800), server(1, served=10**6)], NOON + 10)
    tokens.add([server(0, served=900), server(1, served=10**6 + 200)], NOON + 20)
    assert tokens.total == 300 + 100 + 200
    assert tokens.history(NOON + BUCKET_SECONDS) == [(NOON + BUCKET_SECONDS, 600 / BUCKET_SECONDS)]


def test_a_server_that_began_again_begins_from_nothing() -> None:
    tokens = Tokens()
    for second, count in enumerate((500, 600, 40, 50)):
        tokens.add([server(0, served=count)], NOON + second)
    assert tokens.total == 110


def test_nobody_counts_for_more_than_it_can_have_computed() -> None:
    tokens = Tokens()
    tokens.add([server(0, 0, 3, served=0)], NOON)
    tokens.add([server(0, 0, 3, served=2**53)], NOON + 2)
    assert tokens.total == 200.0 * 3 * 2


def test_idle_times_are_zero_and_only_the_last_hour_is_kept() -> None:
    tokens = Tokens()
    tokens.add([server(0, served=0)], NOON)
    tokens.add([server(0, served=90)], NOON + 1)
    assert [gained for _, gained in tokens.history(NOON + 3 * BUCKET_SECONDS)] == [90 / BUCKET_SECONDS, 0.0, 0.0]
    late = tokens.history(NOON + 86_400)
    assert len(late) == KEPT
    assert late[-1] == (NOON + 86_400, 0.0)
