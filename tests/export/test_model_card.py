"""The card tells how to use the model and who made it, and nobody's name is more than text."""

from html.parser import HTMLParser
from typing import Any

from huggingface_hub import ModelCard

from dedloc_kit.export.model_card import LISTED, model_card
from dedloc_kit.learning.task import Usage
from dedloc_kit.ledger import Contributor, EvaluationPoint
from dedloc_kit.records.steps import GlobalStep
from tests.tiny import tiny_run

USAGE = Usage("transformers", "fill-mask", 'fill = pipeline("fill-mask", model="us/model")\n')


def contributor(name: str, samples: int = 64) -> Contributor:
    return Contributor("12D3Koo" + name, name, samples, 2, 0.0, 1.0)


def card(**values: Any) -> str:
    source = {"dataset": "owner/texts", "subset": "bn", "revision": "0123abc"}
    mine = {"dataset": "/home/asha/secret/corpus"}
    run = tiny_run(
        "bengali", task={"name": "tiny", "language": "as"}, data={"train": [source, mine], "evaluation": mine}
    )
    step = GlobalStep(step=40, round="ab", time=0.0, samples=64, loss=6.5, peers=2, seconds=0.1)
    defaults = {
        "repository": "us/model",
        "usage": USAGE,
        "steps": [step],
        "evaluations": [EvaluationPoint(40, 6.25, 0.0, {})],
    }
    defaults |= {"contributors": [contributor("Asha", 1_500)], "samples": 1_600, "metadata": {}}
    return model_card(run, 42, **{**defaults, **values})


def head(text: str) -> dict[str, Any]:
    values: dict[str, Any] = ModelCard(text).data.to_dict()  # type: ignore[no-untyped-call]
    return values


def test_the_card_says_what_it_is_how_to_use_it_and_who_made_it() -> None:
    text = card()
    assert head(text) == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["collaborative-training", "dedloc_kit"],
        "datasets": ["owner/texts"],
        "language": "as",
    }
    assert f"```python\n{USAGE.code}```" in text
    assert "1 volunteer trained this model" in text
    assert "global step 42 of 1,000; 1,600 samples" in text
    assert "6.5000" in text
    assert "6.2500" in text
    assert "(curve.svg)" in text
    assert "<tr><td>Asha</td><td>1,500</td><td>2</td></tr>" in text
    assert "`owner/texts`: bn, train, revision 0123abc, weight 1" in text
    assert "the organizer's own files `corpus`: train, held out" in text
    assert "--resume us/model" in text
    assert "/home/asha" not in text


def test_what_the_organizer_wrote_at_the_head_stays_and_nothing_is_invented() -> None:
    theirs = {"license": "cc-by-4.0", "language": ["bn"], "tags": ["ours"], "datasets": "owner/more"}
    values = head(card(metadata={**theirs, "library_name": "other", "model-index": [{"name": "x"}]}))
    assert values["license"] == "cc-by-4.0"
    assert values["language"] == ["bn"]
    assert values["tags"] == ["collaborative-training", "dedloc_kit", "ours"]
    assert values["datasets"] == ["owner/more", "owner/texts"]
    assert values["library_name"] == "transformers"
    assert "model-index" not in values
    assert "license" not in head(card())


def test_a_card_of_a_run_that_has_only_begun_and_exports_nothing_is_whole() -> None:
    text = card(usage=None, steps=[], evaluations=[], contributors=[])
    assert "None so far." in text
    assert "## Use it" not in text
    assert "pipeline_tag" not in head(text)


class Cells(HTMLParser):
    """Which elements there are, and what is in the cells of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.elements.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_name_is_only_ever_text() -> None:
    names = [
        "</table><script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "[free money](https://example.com) **bold** `code` | cell",
        "&lt;b&gt;",
        "\u202etxet dekcab\u2066",
        "  ",
    ]
    text = card(contributors=[contributor(name) for name in names])
    begin, end = text.index("<table>"), text.index("</table>")
    table = text[begin:end]
    assert "\n\n" not in table, "an empty line would end what Markdown leaves alone"
    cells = Cells()
    cells.feed(table)
    assert cells.elements == {"table", "tr", "th", "td"}
    for name in names[:4]:
        assert name in cells.texts
    assert "txet dekcab" in cells.texts
    assert "anonymous" in cells.texts
    assert "script" not in text.replace(table, "")


def test_a_bengali_name_keeps_its_joiners() -> None:
    assert "র\u200d্যাব" in card(contributors=[contributor("র\u200d্যাব")])


def test_more_contributors_than_anyone_reads_are_counted() -> None:
    text = card(contributors=[contributor(f"n{number}") for number in range(LISTED + 3)])
    assert text.count("<tr>") == LISTED + 1
    assert "And 3 others." in text
