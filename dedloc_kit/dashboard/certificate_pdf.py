"""The certificate as a PDF, to print and to keep.

A PDF brings its letters along. Those of Western Europe every reader has; for a name in another script we take a font
of this machine, where there is one.
"""

import shutil
import subprocess
import unicodedata
from functools import lru_cache
from pathlib import Path

from fpdf import FPDF

from dedloc_kit.dashboard.certificate import (
    GREEN,
    HEIGHT,
    LINE,
    PAPER,
    WIDTH,
    Certificate,
    Line,
    lines,
    moment,
    name_points,
    rosettes,
)
from dedloc_kit.errors import UserError

_FIND_SECONDS = 10.0


def certificate_pdf(certificate: Certificate) -> bytes:
    """One page of A4. Raises UserError with what to do if no font of this machine has the name's letters."""
    pdf = FPDF("landscape", "mm", "A4")
    pdf.set_auto_page_break(False)
    pdf.set_title(f"Certificate for {certificate.name}")
    pdf.set_creator("dedloc_kit")
    pdf.set_creation_date(moment(certificate.until))  # the same certificate is the same file
    pdf.add_page()
    pdf.set_fill_color(PAPER)
    pdf.rect(0, 0, WIDTH, HEIGHT, "F")
    for inset, colour, width in ((9, LINE, 0.3), (11, GREEN, 0.7)):
        pdf.set_draw_color(colour)
        pdf.set_line_width(width)
        pdf.rect(inset, inset, WIDTH - 2 * inset, HEIGHT - 2 * inset, round_corners=True, corner_radius=2)
    pdf.set_line_width(0.12)
    for points, colour in rosettes(certificate):
        pdf.set_draw_color(colour)
        pdf.polyline(points)
    pdf.set_draw_color(LINE)
    pdf.set_line_width(0.4)
    pdf.line(WIDTH / 2 - 45, 82, WIDTH / 2 + 45, 82)
    _write_name(pdf, certificate.name)
    for line in lines(certificate):
        pdf.set_font("Times" if line.serif else "Helvetica", size=line.points)
        _write(pdf, line)
    return bytes(pdf.output())


def _write_name(pdf: FPDF, name: str) -> None:
    size = name_points(name)
    try:
        name.encode("latin-1")
        pdf.set_font("Times", size=size)
    except UnicodeEncodeError:
        path, number = font_for(name)
        pdf.add_font("name", fname=path, collection_font_number=number)
        pdf.set_font("name", size=size)
        pdf.set_text_shaping(True)
    while pdf.get_string_width(name) > WIDTH - 60:
        size *= 0.9
        pdf.set_font_size(size)
    _write(pdf, Line(WIDTH / 2, 74, name, size))
    pdf.set_text_shaping(False)


def _write(pdf: FPDF, line: Line) -> None:
    pdf.set_text_color(line.colour)
    pdf.set_char_spacing(line.spacing)
    width, height = pdf.get_string_width(line.text) + 2, line.points / 2
    pdf.set_xy(line.x - width / 2, line.y - 0.8 * height)
    pdf.cell(width, height, line.text, align="C", link=line.link)


def font_for(text: str) -> tuple[Path, int]:
    """A font file that has all letters of a text, and the font's number in it; as fontconfig knows them.

    Raises UserError if there is none.
    """
    found = _fonts_with(" ".join(sorted({f"{ord(c):x}" for c in text if unicodedata.category(c) != "Cf"})))
    if not found:
        raise UserError(
            "the organizer's machine has no font for this name, so there is no PDF of it: open certificate.svg and let "
            "the browser print it to a PDF"
        )
    return min(found, key=lambda font: ("Serif" not in font[0].name, font[0].name))


@lru_cache(maxsize=256)
def _fonts_with(letters: str) -> tuple[tuple[Path, int], ...]:
    command = shutil.which("fc-list")
    if command is None:
        return ()
    pattern = f":slant=0:weight=80:width=100:scalable=true:color=false:variable=false:charset={letters}"
    asked = [command, "--format", "%{file}\t%{index}\n", pattern]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=_FIND_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError("the organizer's machine is too busy to look for a font now; try again in a minute") from None
    rows = (line.rsplit("\t", 1) for line in listed.stdout.splitlines())
    return tuple((Path(file), int(number)) for file, number in rows if file.endswith((".ttf", ".otf", ".ttc")))
