"""What a run's model says of itself: README.md and the picture of its losses.

Contributors choose their names themselves: whatever they are, they only ever appear as text.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import public_name
from dedloc_kit.config.task import Source
from dedloc_kit.display.curve import CURVE_FILE
from dedloc_kit.display.human import visible
from dedloc_kit.export.scores import table
from dedloc_kit.hub import described
from dedloc_kit.learning.evaluate.report import Report
from dedloc_kit.learning.task import Usage
from dedloc_kit.ledger import Contributor, EvaluationPoint
from dedloc_kit.records.state import STATE_FILE
from dedloc_kit.records.steps import GlobalStep

LISTED = 200
"""Contributors beyond these are counted, not listed."""
_TAGS = ["dedloc_kit", "collaborative-training"]


def model_card(
    run: RunConfig,
    step: int,
    *,
    repository: str | None,
    usage: Usage | None,
    steps: Sequence[GlobalStep],
    evaluations: Sequence[EvaluationPoint],
    contributors: Sequence[Contributor],
    samples: int,
    metadata: Mapping[str, Any],
    scores: Sequence[Report] = (),
) -> str:
    """README.md as Markdown with its YAML head.

    :param step: the global step whose state lies beside the card
    :param repository: of the Hub, that the training state is pushed to beside the card; none: it is not there
    :param samples: that went into it, those too that are to nobody's credit
    :param scores: what `dedloc evaluate` found
    :param metadata: the head so far; what the organizer has put there (a licence, languages) stays
    """
    parts = [
        _head(run, usage, metadata),
        f"# {run.name}\n\n{_summary(run, step, steps, evaluations, len(contributors), samples)}",
        f"![Training and held-out loss by global step]({CURVE_FILE})",
    ]
    if usage is not None:
        parts.append(f"## Use it\n\n```python\n{usage.code.rstrip()}\n```")
    if scores:
        parts.append("\n\n".join(["## What it has learned", *map(table, scores)]))
    parts += [
        f"## Contributors\n\n{_table(contributors)}",
        f"## Data\n\n{_data(run)}",
        f"## Training\n\n{_training(run, repository)}",
    ]
    return "\n\n".join(parts) + "\n"


def _head(run: RunConfig, usage: Usage | None, metadata: Mapping[str, Any]) -> str:
    from huggingface_hub import ModelCardData

    ours: dict[str, Any] = {"tags": sorted({*_texts(metadata.get("tags")), *_TAGS})}
    datasets = {public_name(source.dataset) for source in (*run.data.train, *run.data.cooldown) if _on_the_hub(source)}
    if datasets:
        ours["datasets"] = sorted({*_texts(metadata.get("datasets")), *datasets})
    language = run.task.options.get("language")
    if isinstance(language, str) and "language" not in metadata:
        ours["language"] = language
    if usage is not None:
        ours |= {"library_name": usage.library, "pipeline_tag": usage.pipeline}
    kept = {str(key): value for key, value in metadata.items() if key != "model-index"}
    return f"---\n{ModelCardData(**{**kept, **ours}, ignore_metadata_errors=True).to_yaml()}\n---"


def _summary(
    run: RunConfig,
    step: int,
    steps: Sequence[GlobalStep],
    evaluations: Sequence[EvaluationPoint],
    volunteers: int,
    samples: int,
) -> str:
    text = (
        f"{_count(volunteers, 'volunteer')} trained this model together over the Internet with dedloc_kit, "
        "after [DeDLOC](https://arxiv.org/abs/2106.10207). This is its state after "
        f"global step {step:,} of {run.optimizer.total_steps:,}; {_count(samples, 'sample')} went into it."
    )
    losses = [global_step for global_step in steps if global_step.loss is not None]
    if losses:
        text += f" The training loss of global step {losses[-1].step:,} was {losses[-1].loss:.4f}."
    if evaluations:
        text += f" The loss on held-out data was {evaluations[-1].loss:.4f} after step {evaluations[-1].step:,}."
    return text


def _table(contributors: Sequence[Contributor]) -> str:
    """As HTML: inside of it nothing that a name may hold means anything to Markdown."""
    if not contributors:
        return "None so far."
    rows = "\n".join(
        f"<tr><td>{escape(visible(contributor.name))}</td><td>{contributor.samples:,}</td><td>{contributor.steps:,}</td></tr>"
        for contributor in contributors[:LISTED]
    )
    table = f"<table>\n<tr><th>name</th><th>samples</th><th>global steps</th></tr>\n{rows}\n</table>"
    others = len(contributors) - LISTED
    return f"{table}\n\nAnd {_count(others, 'other')}." if others > 0 else table


def _data(run: RunConfig) -> str:
    lines = [_source(source, f"weight {source.weight:g}") for source in run.data.train]
    lines += [_source(source, f"weight {source.weight:g}, in the end") for source in run.data.cooldown]
    if run.data.evaluation is not None:
        lines.append(_source(run.data.evaluation, "held out"))
    return "\n".join(lines)


def _source(source: Source, what: str) -> str:
    details = [source.subset, source.split, f"revision {source.revision}" if source.revision else None, what]
    where = "" if _on_the_hub(source) else "the organizer's own files "
    return f"- {where}`{public_name(source.dataset)}`: {', '.join(filter(None, details))}"


def _training(run: RunConfig, repository: str | None) -> str:
    resuming = (
        ""
        if repository is None
        else (
            f" `{STATE_FILE}` holds parameters and optimizer; who has the organizer's `run.toml` goes on from here, or "
            f"from an earlier commit, with\n\n```\ndedloc launch run.toml --resume {repository}\n```"
        )
    )
    return (
        f"The run `{run.run_id}`.{resuming}\n\n"
        f"<details>\n<summary>The configuration</summary>\n\n"
        f"```json\n{json.dumps(json.loads(described(run))['run'], indent=2, ensure_ascii=False)}\n```\n\n</details>"
    )


def _on_the_hub(source: Source) -> bool:
    return public_name(source.dataset) == source.dataset


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _texts(value: object) -> list[str]:
    """What the YAML head holds as one text or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]
