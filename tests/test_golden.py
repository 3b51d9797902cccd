"""What people type and read changes only on purpose; see `tests.golden`."""

import pytest

from dedloc_kit.config.section import Section
from tests import golden
from tests.golden import reference


def test_what_people_type_and_read_is_as_it_was_written_down() -> None:
    found, kept = golden.files(), golden.written()
    assert found.keys() == kept.keys()
    changed = [path for path, text in found.items() if text != kept[path]]
    assert not changed, "if that is meant, run `python -m tests.golden` and read the difference"


def test_the_reference_says_what_the_code_declares() -> None:
    kept = reference.FILE.read_text(encoding="utf-8")
    assert kept == golden.reference_text(), "run `python -m tests.golden` and read the difference"


@pytest.mark.parametrize("kind", [kind for _, _, kind, _ in reference.MODELS], ids=lambda kind: kind.__name__)
def test_every_key_has_a_description_of_a_sentence_or_two(kind: type[Section]) -> None:
    for key, field in reference.described(kind):
        words = (field.description or "").split()
        assert words, f"{kind.__name__}: {key} lacks one"
        assert words[-1].endswith("."), f"{kind.__name__}: {key} has no sentence"
        assert len(words) <= 45, f"{kind.__name__}: {key} says too much"
