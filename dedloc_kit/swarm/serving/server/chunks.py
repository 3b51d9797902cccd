"""Calls in chunks, between which others have their turn, and how much memory attention may take in one."""

from functools import partial

import torch
from torch import Tensor

from dedloc_kit.blocks.adapters import adapted
from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.swarm.remote.tensors import Form, in_form
from dedloc_kit.swarm.serving.protocol import Call, Refusal
from dedloc_kit.swarm.serving.server.computing import Computing, Priority

SCORES = 2**29
"""Rows x tokens x tokens that they may look at x heads in a chunk, and x layers backward: attention that keeps its
scores, as in models that have the eager one alone, takes 2 GB for each copy of so many in float32."""


def check(call: Call, span: Span, *, backward: bool) -> None:
    """Raises Refusal if attention would take too much memory, however the call is divided."""
    scores = call.tokens**2 if backward else call.rows * (call.past + call.tokens)
    if scores * span.config.num_attention_heads > SCORES:
        raise Refusal("length", f"{call.rows} rows of {call.past} and {call.tokens} tokens take too much memory here")


async def forward(
    computing: Computing, priority: Priority, past: CachedSpan, span: Span, call: Call, hidden: Tensor, form: Form
) -> Tensor:
    """The output of a call that goes on from this past of the span, as it travels."""
    hidden = hidden.to(_dtype(span))
    mask, positions = call.attention_mask(), call.position_ids()
    scores = call.rows * (call.past + call.tokens) * span.config.num_attention_heads
    size, outputs = max(1, min(computing.chunk // call.rows, SCORES // scores)), list[Tensor]()
    for at in range(0, call.tokens, size):
        end = min(at + size, call.tokens)
        given = (
            hidden[:, at:end],
            None if mask is None else mask[:, : call.past + end],
            None if positions is None else positions[:, at:end],
        )
        more = partial(_more, past, call if at == 0 else None, form, *given)
        outputs.append(await computing.run(priority, more))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


async def backward(
    computing: Computing, span: Span, adapter: Adapter | None, call: Call, hidden: Tensor, gradient: Tensor, form: Form
) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient of a call's hidden states, as it travels, and those of the adapter's tensors, from that of its
    output.

    Some rows at a time; where these are still too long through some layers at a time: what goes into these is kept, and
    what is within them computed again.
    """
    hidden = hidden.to(_dtype(span))
    mask, positions = call.attention_mask(), call.position_ids()
    layers, scores = span.end - span.begin, call.tokens**2 * span.config.num_attention_heads
    rows = max(1, min(call.rows, computing.chunk // call.tokens, SCORES // scores))
    size = max(1, min(computing.chunk * layers // (rows * call.tokens), SCORES // (rows * scores)))
    parts = [(begin, min(begin + size, span.end)) for begin in range(span.begin, span.end, size)]
    backs, of_adapter = list[Tensor](), dict[str, Tensor]()
    for at in range(0, call.rows, rows):
        some = slice(at, at + rows)
        given = None if mask is None else mask[some], None if positions is None else positions[some]
        inputs, back = [hidden[some]], gradient[some]
        for part in parts[:-1]:
            work = partial(_through, span, adapter, part, inputs[-1], *given)
            inputs.append(await computing.run(Priority.TRAINING, work))
        for part in reversed(parts):
            last = form if part == parts[0] else None
            again = partial(_back, span, adapter, part, inputs.pop(), *given, back, last)
            back, found = await computing.run(Priority.TRAINING, again)
            for name, values in found.items():
                of_adapter[name] = of_adapter[name] + values if name in of_adapter else values
        backs.append(back)
    return backs[0] if len(backs) == 1 else torch.cat(backs), of_adapter


def _more(
    past: CachedSpan,
    begins: Call | None,
    form: Form,
    hidden: Tensor,
    mask: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """The output of a chunk, as it travels.

    :param begins: the call whose first one it is
    """
    if begins is not None:
        try:
            past.follow(begins.follows(), begins.rows)
        except ValueError as error:
            raise Refusal("past", str(error)) from None
    return _sent(past.more(hidden, mask, positions), form)


@torch.no_grad()
def _through(
    span: Span,
    adapter: Adapter | None,
    part: tuple[int, int],
    hidden: Tensor,
    mask: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """Hidden states after some of the span's layers."""
    return adapted.forward(span.part(*part), hidden, mask, positions, None, adapter and adapter.part(*part))


def _back(
    span: Span,
    adapter: Adapter | None,
    part: tuple[int, int],
    hidden: Tensor,
    mask: Tensor | None,
    positions: Tensor | None,
    gradient: Tensor,
    form: Form | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same backward; the gradient as it travels, if there is a form for that."""
    if part == (span.begin, span.end):
        layers, theirs = span, adapter
    else:
        layers, theirs = span.part(*part), adapter and adapter.part(*part)
    back, found = adapted.backward(layers, hidden, mask, positions, theirs, gradient)
    of_adapter = {name: values.detach().to("cpu", torch.float32) for name, values in found.items()}
    return back if form is None else _sent(back, form), of_adapter


def _sent(output: Tensor, form: Form) -> Tensor:
    """As it travels."""
    if not output.isfinite().all():
        raise Refusal("failed", "the layers give NaN or infinity")
    return in_form(output, form)


def _dtype(span: Span) -> torch.dtype:
    """In which it computes."""
    return next(values.dtype for values in span.parameters() if values.is_floating_point())
