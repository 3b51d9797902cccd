import pytest

from dedloc_kit.display.counting import CountDisplay


def test_what_is_counted_comes_back_and_a_terminal_shows_how_many_and_how_fast(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with CountDisplay("documents") as display:
        assert list(display.each("web", range(3), 3)) == [0, 1, 2]
        assert list(display.each("web", range(2))) == [0, 1]
    said = capsys.readouterr().err
    assert "5/3" in said
    assert "documents" in said
    assert " a second" in said
