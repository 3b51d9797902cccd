"""The language of a text: by py3langid, and by its script where no language of py3langid has it."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from dedloc_kit.errors import UserError
from dedloc_kit.organizer.corpus.sketch import missing

SAMPLE = 500
"""Characters that are looked at, from the middle of a text."""
_SCRIPTS = frozenset(
    re.findall(
        "....",
        "ArabArmnBengCyrlDevaEthiGeorGrekGujrGuruHangHaniHebrHiraKanaKhmrKndaLaooLatnMlymMymrOryaSinhTamlTeluThaiTibt",
    )
)
"""Those of py3langid's languages, by ISO 15924."""


class Identifier:
    """Says which language a text is in. Raises UserError if py3langid or GlotScript is not installed."""

    def __init__(self) -> None:
        self._model, self._script = _model(), _script_of()

    def language(self, text: str) -> str:
        """A code of ISO 639, or of a script that none of the model's languages has its code of ISO 15924."""
        begin = max(0, len(text) - SAMPLE) // 2
        sample = text[begin : begin + SAMPLE]
        shares = self._script(sample)[2]["details"] or {}
        script = next((name for name in shares if not name.startswith("Z")), None)  # Zyyy: common, Zzzz: unknown
        return script if script and script not in _SCRIPTS else str(self._model.classify(sample)[0])

    def check(self, languages: Sequence[str]) -> None:
        """Raise UserError if one of these is never the answer."""
        from GlotScript.GlotScript import SCRIPT_RANGES

        known = {*self._model.labels, *(SCRIPT_RANGES.keys() - _SCRIPTS)}
        for language in languages:
            if language not in known:
                near = get_close_matches(language, sorted(known), n=3, cutoff=0) or sorted(known)[:3]
                raise UserError(
                    f"no language '{language}' can be told from others; nearest are {', '.join(near)}. Of a language "
                    "whose script py3langid does not know give that, such as --language Olck, else leave it out"
                )


@cache
def _model() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(missing("py3langid")) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE)


@cache
def _script_of() -> Any:
    try:
        from GlotScript import sp
    except ImportError:
        raise UserError(missing("GlotScript")) from None
    return sp
