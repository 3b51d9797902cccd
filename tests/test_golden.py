"""What people type and read changes only on purpose; see `tests.golden`."""

from tests import golden


def test_what_people_type_and_read_is_as_it_was_written_down() -> None:
    found, kept = golden.files(), golden.written()
    assert found.keys() == kept.keys()
    changed = [path for path, text in found.items() if text != kept[path]]
    assert not changed, "if that is meant, run `python -m tests.golden` and read the difference"
