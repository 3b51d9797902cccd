"""A history is what a cache would hold, in little more room."""

import torch

from dedloc_kit.blocks.past import Past
from dedloc_kit.swarm.serving.client.history import History


def test_it_follows_rows_and_tokens_as_a_cache_does() -> None:
    torch.manual_seed(0)
    history, expected = History(), torch.zeros(2, 0, 4)
    for number in range(200):
        tokens = max(0, expected.shape[1] - (number % 7 == 3) * 2)
        rows = tuple(torch.randint(len(expected), (2 + number % 3,)).tolist()) if tokens and number % 2 else None
        history.follow(Past(tokens, rows))
        expected = expected[:, :tokens] if rows is None else expected[list(rows), :tokens]
        new = torch.randn(len(expected), 50 if number == 0 else 1 + number % 2, 4)
        history.add(new)
        expected = torch.cat([expected, new], 1)
        assert history.tokens == expected.shape[1]
    assert torch.equal(history.all(), expected)


def test_numbers_of_two_forms_keep_their_values() -> None:
    history = History()
    for number in range(100):
        history.add(
            torch.full((1, 1, 2), 1e5 if number == 50 else 1.001).to(torch.bfloat16 if number == 50 else torch.half)
        )
    found = history.all()
    assert found[0, 50, 0] == torch.tensor(1e5).bfloat16().float()
    assert found[0, 51, 0] == torch.tensor(1.001).half().float()


def test_a_token_takes_little_more_than_its_numbers() -> None:
    history = History()
    for _ in range(1000):
        history.add(torch.zeros(1, 1, 64, dtype=torch.float16))
    pieces = [piece for piece, _ in history._pieces]
    assert sum(piece.untyped_storage().nbytes() for piece in pieces) == 1000 * 64 * 2
    assert len(pieces) < 100
