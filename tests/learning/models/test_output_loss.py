"""The loss over a large vocabulary is the plain one, without its memory."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.learning.models import output_loss as module
from dedloc_kit.learning.models.output_loss import best_tokens, output_loss, scores_within

TOKENS, WIDTH, VOCABULARY = 50, 12, 37


def plain(hidden: Tensor, output: nn.Linear, labels: Tensor, softcap: float | None) -> Tensor:
    scores = output(hidden)
    return functional.cross_entropy(scores if softcap is None else softcap * (scores / softcap).tanh(), labels)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("bias", [True, False])
def test_it_and_its_gradients_are_those_of_the_plain_loss_also_with_tied_weights(
    monkeypatch: pytest.MonkeyPatch, softcap: float | None, bias: bool
) -> None:
    monkeypatch.setattr(module, "_SCORES_AT_ONCE", 7 * VOCABULARY)  # the last chunk is smaller
    torch.manual_seed(0)
    words = nn.Embedding(VOCABULARY, WIDTH)
    output = nn.Linear(WIDTH, VOCABULARY, bias=bias)
    output.weight = words.weight
    middle = nn.Linear(WIDTH, WIDTH)
    ids, labels = torch.randint(VOCABULARY, (2, TOKENS))
    parameters = [*middle.parameters(), *output.parameters()]

    found = output_loss(middle(words(ids)), output, labels, softcap)
    expected = plain(middle(words(ids)), output, labels, softcap)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    gradients = torch.autograd.grad(3.0 * found, parameters)
    for one, other in zip(gradients, torch.autograd.grad(3.0 * expected, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(output_loss(middle(words(ids)), output, labels, softcap), expected)
        assert torch.equal(best_tokens(words(ids), output), output(words(ids)).argmax(dim=-1))


def test_more_free_memory_is_for_larger_chunks_within_bounds() -> None:
    assert scores_within(0) == scores_within(2**31) == 2**24
    assert scores_within(15 * 2**30) == 2**26
    assert scores_within(2**50) == 2**28
    assert all(8 * scores_within(gigabytes * 2**30) < gigabytes * 2**30 for gigabytes in range(1, 200))


def test_weights_that_are_not_trained_get_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    output = nn.Linear(WIDTH, VOCABULARY).requires_grad_(False)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    labels = torch.randint(VOCABULARY, (TOKENS,))
    output_loss(hidden, output, labels).backward()
    found = hidden.grad
    hidden.grad = None
    plain(hidden, output, labels, None).backward()
    assert output.weight.grad is None
    torch.testing.assert_close(found, hidden.grad, rtol=0, atol=1e-6)


def test_in_half_precision_it_is_near_the_plain_loss_and_leaves_no_copy_of_the_weights_behind() -> None:
    torch.manual_seed(0)
    words = nn.Embedding(VOCABULARY, WIDTH)
    output = nn.Linear(WIDTH, VOCABULARY, bias=False)
    output.weight = words.weight
    ids, labels = torch.randint(VOCABULARY, (2, TOKENS))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = output_loss(words(ids), output, labels) + output(words(ids)).float().square().mean()
    loss.backward()
    found, words.weight.grad = words.weight.grad, None
    expected = plain(words(ids), output, labels, None) + output(words(ids)).square().mean()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0.01)
    assert found is not None
    assert words.weight.grad is not None
    assert float((found - words.weight.grad).norm() / words.weight.grad.norm()) < 0.02


@pytest.mark.soak
def test_with_128000_words_and_2048_tokens_it_takes_less_than_400_mb_beyond_the_models_own() -> None:
    measure = """if True:
        import torch
        from pathlib import Path
        from torch import nn
        from dedloc_kit.learning.models.output_loss import output_loss

        def peak():
            return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

        torch.set_num_threads(1)
        output = nn.Linear(64, 128_000, bias=False)
        hidden = torch.randn(2048, 64, requires_grad=True)
        labels = torch.randint(128_000, (2048,))
        output_loss(hidden[:2], nn.Linear(64, 10), labels[:2] % 10).backward()  # what torch itself takes
        before = peak()
        output_loss(hidden, output, labels).backward()
        print(peak() - before - 4 * output.weight.numel())  # the gradient is the model's own
    """
    done = subprocess.run([sys.executable, "-c", measure], capture_output=True, text=True, timeout=300)
    assert int(done.stdout) < 400e6, done.stderr
    assert int(done.stdout) > 10e6, "it was measured at all"
