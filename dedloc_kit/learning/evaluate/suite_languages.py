"""Which task of lm-evaluation-harness is a standard suite in a language, and which published model to compare with.

The suites write languages in their own ways (`swh_Latn`, `ukr`, `sw`). What there is, is read from the folders of the
installed harness; the table here says which codes mean the same language.
"""

import difflib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dedloc_kit.errors import UserError

SUITES = {
    "belebele": ("belebele/belebele_*.yaml",),
    "multiblimp": ("multiblimp/multiblimp_*.yaml",),
    # The human translations first; of other languages there are machine translations alone.
    "global_mmlu": (
        "global_mmlu/default/*/_global_mmlu_*.yaml",
        "global_mmlu/full/*/_global_mmlu_full_??.yaml",
        "global_mmlu/full/*/_global_mmlu_full_???.yaml",
    ),
}
"""By name: where their tasks are. A file is called as its task is, and the task ends with the language.

Belebele (Bandarkar et al. 2024): reading comprehension; MultiBLiMP (Jumelet et al. 2025): minimal pairs of sentences;
Global-MMLU (Singh et al. 2024): questions of school and college.
"""

_SAME = """
af afr|am amh|ar ara arb|as asm|az aze azj|be bel|bg bul|bm bam|bn ben|bo bod tib|br bre|bs bos hbs|ca cat|cs ces cze
cy cym wel|da dan|de deu ger|el ell gre|en eng|es spa|et est ekk|eu eus baq|fa fas per pes|ff ful fuv|fi fin|fil tl tgl
fo fao|fr fra fre|ga gle|gd gla|gl glg|gn grn gug|gu guj|ha hau|he heb|hi hin|hr hrv hbs|ht hat|hu hun|hy hye arm
id ind|ig ibo|is isl ice|it ita|ja jpn|jv jav|ka kat geo|kk kaz|km khm|kn kan|ko kor|ku kur kmr|ky kir|la lat|lg lug
ln lin|lo lao|lt lit|lv lav lvs|mg mlg plt|mi mri mao|mk mkd mac|ml mal|mn mon khk|mr mar|ms msa may zsm|mt mlt
my mya bur|ne nep npi|nl nld dut|no nor nb nob|ny nya|om orm gaz|or ori ory|pa pan|pl pol|ps pus pbt|pt por
ro ron rum|ru rus|rw kin|sa san|sd snd|se sme|si sin|sk slk slo|sl slv|sn sna|so som|sq sqi alb als|sr srp hbs|ss ssw
st sot|su sun|sv swe|sw swa swh|ta tam|te tel|tg tgk|th tha|ti tir|tn tsn|tr tur|ts tso|ug uig|uk ukr|ur urd
uz uzb uzn|vi vie|wo wol|xh xho|yo yor|zh zho chi cmn zhos|zu zul
"""
"""Codes of one language: ISO 639-1 and 639-3, macro-languages with what stands for them, and other spellings. A
language that has one code everywhere is left out."""
ROWS = [row.split() for row in re.split(r"[|\n]", _SAME.strip())]

_REFERENCES = {
    *("ara", "bos", "bul", "cat", "ces", "dan", "deu", "ell", "eng", "est", "eus", "fin", "fra", "hrv", "hun", "isl"),
    *("ita", "lit", "lvs", "nld", "nob", "pol", "por", "ron", "rus", "slk", "slv", "spa", "swe", "tur", "zhos"),
}
"""Of the 38 languages of the collection those whose names are known."""
_CODE = re.compile(r"([a-z]{2,4})(?:[_-]([a-z]{4}))?", re.IGNORECASE)


class Code(NamedTuple):
    """A language as somebody writes it."""

    same: tuple[str, ...]
    """What it may be called."""
    script: str | None


class Named(NamedTuple):
    """A task of the harness."""

    name: str
    folder: Path
    """Where its files are."""
    file: Path | None = None
    """Of a task of one's own."""


def code_of(text: str) -> Code:
    """Read a code such as `uk`, `ukr` or `ukr_Cyrl`; raises UserError if it is none."""
    found = _CODE.fullmatch(text)
    if found is None:
        raise UserError(f"--language {text!r:.40} is no code of ISO 639, such as uk, ukr or ukr_Cyrl; correct it")
    name = found[1].lower()
    same = [code for row in ROWS if name in row for code in row]
    return Code((name, *same), found[2] and found[2].capitalize())


def reference(language: str) -> str | None:
    """The monolingual model of 2.15 B parameters, trained by HPLT and OpenEuroLLM on 100 B tokens, on the Hub."""
    found = [code for code in code_of(language).same if code in _REFERENCES]
    return f"HPLT/hplt2c_{found[0]}_checkpoints" if found else None


def task_of(suite: str, language: str) -> Named | None:
    """The task that is a suite in a language; none if it has not that language. Raises UserError if it is no suite."""
    if suite not in SUITES:
        nearest = difflib.get_close_matches(suite, SUITES, n=1, cutoff=0.0)[0]
        raise UserError(
            f"there is no suite {suite!r:.80}; did you mean {nearest}? Known are {', '.join(SUITES)}, and a task of "
            "your own is a file that ends with .yaml"
        )
    code = code_of(language)
    for pattern in SUITES[suite]:
        prefix = pattern.rpartition("/")[2].lstrip("_").partition("?")[0].partition("*")[0]
        tasks = {path.stem.lstrip("_").removeprefix(prefix): path for path in harness().glob(pattern)}
        for each in code.same:
            written = [name for name in tasks if name.partition("_")[0] == each]
            if code.script is not None and any("_" in name for name in written):
                written = [name for name in written if name.endswith(f"_{code.script}")]
            if written:
                # Of several scripts the one that is not a transcription: Deva before Latn, Hans before Hant.
                chosen = min(written, key=lambda name: (name.endswith("_Latn"), name))
                return Named(prefix + chosen, tasks[chosen].parent)
    return None


def harness() -> Path:
    """The folder of tasks in the installed lm-evaluation-harness; raises UserError if there is none."""
    found = find_spec("lm_eval")
    if found is None or found.origin is None:
        raise UserError("--suite needs lm-evaluation-harness; run pip install 'dedloc_kit[suites]'")
    return Path(found.origin).parent / "tasks"
