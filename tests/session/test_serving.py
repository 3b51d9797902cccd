"""What a volunteer who serves sees, in a terminal and in a notebook."""

import io

from dedloc_kit.display.console import Console
from dedloc_kit.events import ServerSeen
from dedloc_kit.notebook.serve import markup
from dedloc_kit.session.serving import ServingSnapshot, lines
from dedloc_kit.session.serving_display import _Lines, view

HOSTILE = "<script>x</script>\x1b[2J"


def seen(begin: int, end: int, **changed: object) -> ServerSeen:
    values = {
        **{"peer": "p", "name": "ada", "team": "", "device": "CPU", "begin": begin, "end": end, "form": "int8"},
        **{"version": "v", "state": "online", "decoding": 12.0, "prompts": 90.0, "passes": 30.0},
        **{"cache_tokens": 8192, "free_tokens": 8000, "sessions": 3, "served": 1200, "client_mode": False},
    }
    return ServerSeen.model_validate({**values, **changed})


NOW = ServingSnapshot(
    **{"phase": "serving", "text": "serving the layers 0:2", "run_id": "toy-0", "name": "ada", "version": "v"},  # type: ignore[arg-type]
    **{"layers": 4, "mine": seen(0, 2), "servers": (seen(0, 2),), "earlier": 100},  # type: ignore[arg-type]
)


def test_it_is_told_what_is_served_and_which_layers_nobody_has() -> None:
    told = dict(lines(NOW))
    assert told["layers"] == "0 to 1 of 4, as int8"
    assert told["answering"] == "3 now, with 192 of 8,192 tokens to remember"
    assert told["given"] == "1,300 tokens x layers"
    assert told["servers"] == "1; nobody serves the layers 2 to 3"


def test_servers_of_other_weights_fill_no_gap() -> None:
    assert ServingSnapshot(layers=4, version="v", servers=(seen(0, 4, version="other"),)).gaps == ("0 to 3",)


def test_what_others_wrote_takes_over_neither_terminal_nor_notebook() -> None:
    now = ServingSnapshot(text=HOSTILE, about=HOSTILE, name=HOSTILE, run_id=HOSTILE, warnings=(HOSTILE,))
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    console.print(view(now))
    _Lines(console).show(now)
    assert "\x1b[2J" not in out.getvalue()
    assert "<script>" not in markup(now, buttons=True)


def test_without_a_terminal_each_change_is_a_line() -> None:
    out = io.StringIO()
    shown = _Lines(Console(file=out, width=200))
    for now in (NOW, NOW, ServingSnapshot(text="paused", layers=4, version="v", servers=(seen(0, 4),))):
        shown.show(now)
    assert out.getvalue().splitlines() == [
        *("serving the layers 0:2", "nobody serves the layers 2 to 3", "paused", "all 4 layers are served"),
    ]
