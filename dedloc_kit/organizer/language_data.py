"""The data of a run by its languages: which open datasets, in which shares, for how long, and what to say of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import SEQUENCE_LENGTH, Source
from dedloc_kit.organizer.corpus_size import (
    MOST_PASSES,
    TOKENS_A_PARAMETER,
    TOKENS_A_WORD,
    Schedule,
    parameters,
    shares,
    tokens_in,
    within,
)
from dedloc_kit.organizer.languages import Language, other_scripts

WIKIPEDIA_MOST = 0.25
"""Of a language's text: a Wikipedia beside which there is little else was mostly written by programs."""
HPLT_SHARE = 0.5
"""What HPLT counts for, beside FineWeb-2's text. Its files are 0.9 to 4 times as large in ten languages that were
looked at, but a part of them are the same pages."""
_ENOUGH = 30e9
"""Words in FineWeb-2, beyond which HPLT is not needed; the largest languages lie there in parts."""
_SMALLEST_WEIGHT = 0.0005
_MULTILINGUAL = 100e6
"""Parameters from which on a model that begins untrained is better than one that goes on (`continue`)."""
_GPT = "gpt (124 million parameters)"
_RECIPES = (
    (
        1e9,
        f"{_GPT}, its larger shape (360 million, in its run.toml), or with many volunteers causal-pipeline or experts",
    ),
    (360e6, f"{_GPT}, or its larger shape (360 million, in its run.toml)"),
)
"""By the parameters that a text must carry."""
_ENGLISH = "eng_Latn"


@dataclass(frozen=True)
class Text:
    """How much there is of a language, in tokens."""

    language: Language
    web: float
    """FineWeb-2's."""
    wikipedia: float
    """What Wikipedia adds to that; 0: it is left out."""
    hplt: float
    """What HPLT is taken for; 0: it is left out."""

    @property
    def known(self) -> float:
        return self.web + self.wikipedia


@dataclass(frozen=True)
class LanguageData:
    """What goes into run.toml, and what the organizer is told."""

    sources: tuple[Source, ...]
    evaluation: Source | None
    schedule: Schedule | None
    """How long the run is in place of what the recipe says; none: that is right."""
    lines: tuple[str, ...]


def text_of(language: Language) -> Text:
    """The text that there is of a language.

    FineWeb-2 has pages of Wikipedia, in small languages most of it. So only the rest of Wikipedia counts, and where
    that is less than half it is not worth a source.
    """
    web = tokens_in(language.words)
    whole = web * language.wikipedia_bytes / language.bytes
    rest = whole - web * language.in_wikipedia
    wikipedia = min(rest, web * WIKIPEDIA_MOST / (1 - WIKIPEDIA_MOST)) if 2 * rest > whole else 0.0
    return Text(language, web, wikipedia, web * HPLT_SHARE if language.hplt and language.words < _ENOUGH else 0.0)


def recommended(found: Sequence[Language]) -> str:
    """The recipe for that much text."""
    carried = parameters(sum(text_of(language).known for language in found), MOST_PASSES)
    return "continue" if carried < _MULTILINGUAL else "gpt"


def language_data(found: Sequence[Language], base: RunConfig) -> LanguageData:
    """The data of those languages for a run of the recipe `base`."""
    texts = [text_of(language) for language in found]
    known = [text.known for text in texts]
    length = base.task.options.get("sequence_length", SEQUENCE_LENGTH)
    usual = Schedule(base.global_batch, base.optimizer.total_steps, base.optimizer.warmup_steps, length)
    schedule = within(usual, sum(known), len(found))
    of_language = shares(known, schedule.tokens)
    weighted = [each for text, share in zip(texts, of_language, strict=True) for each in _sources(text, share)]
    return LanguageData(
        sources=tuple(_rounded(weighted)),
        evaluation=_held_out(found),
        schedule=None if schedule == usual else schedule,
        lines=tuple(_lines(texts, of_language, schedule, usual)),
    )


def with_schedule(text: str, schedule: Schedule, recipe: str) -> str:
    """A run.toml with those numbers, each with why it is another one than the recipe's."""
    why = {
        "global_batch": (schedule.global_batch, f"less than in the recipe {recipe}, so that there are steps enough"),
        "total_steps": (schedule.total_steps, "at the latest; with more the text would be read too often"),
        "warmup_steps": (schedule.warmup_steps, ""),
    }
    for key, (value, reason) in why.items():
        if re.search(rf"^{key} *= *{value}\b", text, re.MULTILINE) is None:
            comment = f"  # {reason}" if reason else ""
            text = re.sub(rf"^{key} *=.*$", f"{key} = {value}{comment}", text, count=1, flags=re.MULTILINE)
    return text


def _web(language: Language, split: str = "train", weight: float = 1.0) -> Source:
    english = language.subset == _ENGLISH
    dataset, subset = ("fineweb", "sample-350BT") if english else ("fineweb-2", language.subset)
    return Source(dataset=f"HuggingFaceFW/{dataset}", subset=subset, split=split, weight=weight)


def _sources(text: Text, share: float) -> list[Source]:
    """A language's, with a share of a run. Each is read as often as the others, for all one knows."""
    language, part = text.language, share / (text.known + text.hplt)
    sources = [_web(language, weight=part * text.web)]
    if text.wikipedia:
        subset = f"20231101.{language.wikipedia}"
        sources.append(Source(dataset="wikimedia/wikipedia", subset=subset, weight=part * text.wikipedia))
    if text.hplt:
        sources.append(Source(dataset="HPLT/HPLT2.0_cleaned", subset=language.hplt, weight=part * text.hplt))
    return sources


def _rounded(sources: Sequence[Source]) -> list[Source]:
    """With weights as people write them, that make 1; the smallest ones are left out."""
    kept = [source for source in sources if source.weight >= _SMALLEST_WEIGHT]
    most = max(kept, key=lambda source: source.weight)
    rounded = {id(source): round(source.weight, 4) for source in kept if source is not most}
    rounded[id(most)] = round(1 - sum(rounded.values()), 4)
    return [source.model_copy(update={"weight": rounded[id(source)]}) for source in kept]


def _held_out(found: Sequence[Language]) -> Source | None:
    """Of the first language that has some."""
    return next((_web(language, split="test") for language in found if language.has_test), None)


def _lines(texts: Sequence[Text], of_language: Sequence[float], schedule: Schedule, usual: Schedule) -> list[str]:
    lines = [_amount(text) for text in texts]
    low, high = TOKENS_A_WORD
    known = sum(text.known for text in texts)
    carried = parameters(known, MOST_PASSES)
    lines += [
        f"about {_rough(known)} tokens ({low} to {high} a word): {_many(parameters(known))} parameters from scratch "
        f"read once, {_many(carried)} in four passes ({TOKENS_A_PARAMETER} tokens a parameter)",
        f"recommended: {_recommendation(carried)}",
    ]
    if any(text.hplt for text in texts):
        lines.append("HPLT's text is weighted as half of FineWeb-2's and not counted: a part of it is the same pages")
    for text, share in zip(texts, of_language, strict=True):
        lines += _remarks(text.language)
        times = f"each page about {_digits(share * schedule.tokens / (text.known + text.hplt))} times"
        if len(texts) > 1:
            lines.append(f"{text.language.name} is {_digits(100 * share)} % of what is read, {times}")
        elif schedule != usual:
            lines.append(f"the run ends after {schedule.total_steps:,} steps, when it has read {times}")
    held_out = _held_out([text.language for text in texts])
    if held_out is None:
        lines.append("there is no held-out text; name some in [data.evaluation] of run.toml, or with --evaluation")
    elif len(texts) > 1:
        lines.append(f"held-out text is that of {held_out.subset} alone: a run has one such source")
    return lines


def _amount(text: Text) -> str:
    language = text.language
    dataset = "a sample of FineWeb" if language.subset == _ENGLISH else "FineWeb-2"
    amount = f"{language.name}: {_rough(language.words)} words in {dataset}"
    if text.wikipedia:
        amount += f", {_rough(language.words * text.wikipedia / text.web)} in Wikipedia"
    return f"{amount}, and HPLT's" if text.hplt else amount


def _remarks(language: Language) -> list[str]:
    remarks = []
    if language.bible > 0.5:
        remarks.append(
            f"{_digits(100 * language.bible)} % of the text of {language.name} is the Bible, and a model of it will "
            "write like the Bible; name other text with --dataset if you have some"
        )
    if scripts := other_scripts(language):
        subsets = " or ".join(each.subset for each in scripts)
        remarks.append(f"{language.name} is taken as {language.subset}; for another script say --language {subsets}")
    return remarks


def _recommendation(carried: float) -> str:
    """For so many parameters at most."""
    if carried < _MULTILINGUAL:
        return f"continue, from a multilingual model: better below {_many(_MULTILINGUAL)} parameters"
    for size, recipes in _RECIPES:
        if carried >= size:
            return recipes
    return _GPT


def _rough(number: float) -> str:
    """`0.57 G`, `59 M`, in two digits."""
    unit, size = ("G", 1e9) if number >= 0.995e8 else ("M", 1e6)
    return f"{_digits(number / size)} {unit}"


def _many(number: float) -> str:
    """`45 million`, `2 billion`, in two digits."""
    return f"{_digits(number / 1e9)} billion" if number >= 0.995e9 else f"{_digits(number / 1e6)} million"


def _digits(number: float) -> str:
    """In two digits; large numbers are whole."""
    return f"{float(f'{number:.2g}'):,.10g}"
