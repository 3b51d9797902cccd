"""The panel in a notebook: core widgets only, so that it works with ipywidgets 7 and 8 and fetches nothing."""

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any, Generic, TypeVar

import ipywidgets

from dedloc_kit.notebook import markup
from dedloc_kit.session.snapshot import Controls, Phase, Snapshot

S = TypeVar("S")
_CAN_PAUSE = frozenset({Phase.WORKING, Phase.WAITING, Phase.PAUSED})
_CAN_LEAVE = _CAN_PAUSE | {Phase.STARTING, Phase.RESTARTING}


class Parts(Generic[S]):
    """Parts of a panel, each HTML made of a snapshot; only what has changed is sent to the browser."""

    def __init__(self) -> None:
        self._parts: list[tuple[Any, Callable[[S], str]]] = []

    def add(self, text: Callable[[S], str]) -> Any:
        """A widget that shows this."""
        widget = ipywidgets.HTML()
        self._parts.append((widget, text))
        return widget

    def show(self, snapshot: S) -> None:
        """Bring all of them up to date."""
        for widget, text in self._parts:
            widget.value = text(snapshot)


class Panel:
    """Shows the snapshots of one session; `widget` is what the cell displays."""

    def __init__(self, controls: Controls | None) -> None:
        """
        :param controls: none where buttons are dead while a cell runs (Colab); then the panel says how to leave
        """
        self._controls = controls
        self._paused = False
        self._parts = Parts[Snapshot]()
        self._pause = button("Pause", "Free this machine for a while; what you have finished counts")
        self._pause.on_click(self._pause_or_resume)
        self._leave = button("Leave", "Hand in what you have finished, and end")
        self._leave.on_click(self._leave_now)
        act = ipywidgets.HBox([self._parts.add(markup.state)])
        self._buttons = ipywidgets.HBox([self._pause, self._leave])
        if controls is not None:
            act.children += (self._buttons,)
        act.add_class("dedloc-act")
        middle = ipywidgets.HBox([self._parts.add(markup.facts), self._parts.add(markup.chart)])
        middle.add_class("dedloc-middle")
        self.widget = ipywidgets.VBox(
            [
                style("panel.css"),
                self._parts.add(markup.head),
                act,
                self._parts.add(markup.progress),
                self._parts.add(markup.bar),
                self._parts.add(markup.notes),
                middle,
                self._parts.add(partial(markup.warnings, buttons=controls is not None)),
                self._parts.add(markup.details),
            ]
        )
        self.widget.add_class("dedloc")

    def show(self, snapshot: Snapshot) -> None:
        """Bring the panel up to date; only the parts that have changed are sent to the browser."""
        self._parts.show(snapshot)
        self._paused = snapshot.phase is Phase.PAUSED
        self._pause.description = "Resume" if self._paused else "Pause"
        self._pause.disabled = snapshot.phase not in _CAN_PAUSE
        self._leave.disabled = snapshot.phase not in _CAN_LEAVE
        self._buttons.layout.display = "none" if snapshot.phase.over else None

    def _pause_or_resume(self, pressed: Any) -> None:
        assert self._controls is not None
        pressed.disabled = True  # until the next snapshot, so that one is sure that the click was seen
        if self._paused:
            self._controls.resume()
        else:
            self._controls.pause()

    def _leave_now(self, pressed: Any) -> None:
        assert self._controls is not None
        pressed.disabled = self._pause.disabled = True
        self._controls.leave()


def button(description: str, tooltip: str) -> Any:
    """A button that is dead until the first snapshot."""
    layout = ipywidgets.Layout(width="auto", min_width="84px")
    return ipywidgets.Button(description=description, tooltip=tooltip, disabled=True, layout=layout)


def style(*names: str) -> Any:
    """A widget that shows nothing and styles the others, by these files."""
    css = "\n".join(files(__package__).joinpath(name).read_text(encoding="utf-8") for name in names)
    widget = ipywidgets.HTML(f"<style>{css}</style>")
    widget.add_class("dedloc-style")
    return widget
