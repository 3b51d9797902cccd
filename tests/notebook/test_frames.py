"""The panel in the frames of other notebooks, in a browser: nothing overflows at 480 pixels, and all of it is readable.

What VS Code and Colab put around a widget is imitated by their variables and backgrounds; widgets by their elements.
"""

from collections.abc import Iterator
from importlib.resources import files

import pytest
from playwright.sync_api import Page

from dedloc_kit.notebook import markup
from dedloc_kit.session.snapshot import Phase, Progress, Snapshot
from tests.browser import need_chromium, open_browser
from tests.notebook.snapshots import snapshot

WIDGETS = """
:root { --jp-ui-font-color1: rgba(0,0,0,0.8); --jp-layout-color0: white; --jp-widgets-color: black; }
.widget-vbox, .widget-hbox { display: flex; } .widget-vbox { flex-direction: column; }
.widget-html { display: flex; } .jupyter-button { color: var(--jp-widgets-color); background: #eee; border: 0; }
"""
"""As the manager of the widgets brings it, in the light whatever the scheme."""
VSCODE = ":root {{ --vscode-editor-background: {0}; --vscode-editor-foreground: {1} }} .output {{ background: white }}"
COLAB = ":root {{ --colab-primary-surface-color: {0}; --colab-primary-text-color: {1} }} .output {{ background: {0} }}"
LAB = ":root {{ --jp-layout-color0: {0}; --jp-ui-font-color1: {1} }} .output {{ background: {0} }}"
BOOTSTRAP = """
.row { margin: 0 -15px } .row::before { content: ' '; display: table } .label { display: inline; padding: .2em .6em }
.progress { height: 20px; overflow: hidden } summary { display: block } .output { background: white }
"""
FRAMES = {
    "JupyterLab light": (LAB.format("white", "rgba(0, 0, 0, 0.87)"), "<body data-jp-theme-light='true'>"),
    "JupyterLab dark": (LAB.format("#111", "rgba(255, 255, 255, 0.87)"), "<body data-jp-theme-light='false'>"),
    "classic Notebook": (BOOTSTRAP, "<body>"),
    "VS Code light": (VSCODE.format("#fff", "#000"), "<body class='vscode-light'>"),
    "VS Code dark": (VSCODE.format("#1e1e1e", "#d4d4d4"), "<body class='vscode-dark'>"),
    "VS Code contrast": (VSCODE.format("#000", "#fff"), "<body class='vscode-high-contrast'>"),
    "Colab light": (COLAB.format("#fff", "#1f1f1f"), "<body>"),
    "Colab dark": (COLAB.format("#383838", "#e3e3e3"), "<body theme='dark'>"),
}
LONG = "/home/rabi/" + "x" * 200
MOMENTS = (
    snapshot(warnings=("others cannot reach this machine",)),
    snapshot(phase=Phase.RESTARTING, progress=Progress("12 s so far"), details=LONG),
    Snapshot(Phase.FAILED, f"http://{'long.' * 30}example.org does not answer", details=LONG),
)
UNREADABLE = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const texts = document.createTreeWalker(document.querySelector('.dedloc'), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest('style, title')) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    const style = getComputedStyle(element);
    const ink = element.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(paint(['white', ...grounds])), light(paint(['white', ...grounds, ink]))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${texts.currentNode.data}: ${ratio.toFixed(1)}`);
  }
  return found;
}"""
"""Texts whose contrast with what lies behind them is below that of WCAG's AA."""
OVERFLOWING = """() => {
  const panel = document.querySelector('.dedloc').getBoundingClientRect();
  return [...document.querySelectorAll('.dedloc *')].filter((element) => {
    const box = element.getBoundingClientRect();
    const cut = getComputedStyle(element).overflowX === 'visible' && element.scrollWidth > element.clientWidth + 1;
    return box.right > panel.right + 0.5 || (cut && element.clientWidth > 0 && !element.closest('svg'));
  }).map((element) => element.className || element.tagName);
}"""


def panel(now: Snapshot) -> str:
    """The elements that the widgets would make."""

    def html(text: str) -> str:
        return f"<div class='jupyter-widgets widget-html'><div class='widget-html-content'>{text}</div></div>"

    buttons = "".join(f"<button class='jupyter-widgets jupyter-button'>{name}</button>" for name in ("Pause", "Leave"))
    act = f"{html(markup.state(now))}<div class='jupyter-widgets widget-hbox'>{buttons}</div>"
    parts = [html(part(now)) for part in (markup.progress, markup.bar, markup.notes)]
    middle = html(markup.facts(now)) + html(markup.chart(now))
    end = html(markup.warnings(now, buttons=False)) + html(markup.details(now))
    css = files("dedloc_kit.notebook").joinpath("panel.css").read_text(encoding="utf-8")
    return (
        f"<style>{css}</style><div class='jupyter-widgets widget-vbox dedloc'>{html(markup.head(now))}"
        f"<div class='jupyter-widgets widget-hbox dedloc-act'>{act}</div>{''.join(parts)}"
        f"<div class='jupyter-widgets widget-hbox dedloc-middle'>{middle}</div>{end}</div>"
    )


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    need_chromium()
    with open_browser() as browser:
        yield browser.new_page(viewport={"width": 480, "height": 900})


@pytest.mark.real
@pytest.mark.parametrize("frame", FRAMES)
def test_all_of_it_fits_and_can_be_read(page: Page, frame: str) -> None:
    css, body = FRAMES[frame]
    for now in MOMENTS:
        output = f"<div class='output'>{panel(now)}</div>"
        page.set_content(f"<!doctype html><style>body {{ margin: 0 }} {WIDGETS} {css}</style>{body}{output}")
        page.evaluate("() => document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate(UNREADABLE) == []
