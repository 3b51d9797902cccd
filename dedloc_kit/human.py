"""Numbers as people read them."""


def count(number: int, one: str = "", many: str = "") -> str:
    """`1,234 samples`: with the plural of the word, which ends in s if none is given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}" if one else f"{number:,}"


def rate(per_second: float) -> str:
    """`3.4`, and from a hundred on without decimals."""
    return f"{per_second:,.1f}" if per_second < 99.95 else f"{per_second:,.0f}"


def size(number: float) -> str:
    """Bytes in the largest sensible unit: `850 kB`, `12.3 MB`, `1.8 GB`."""
    for unit, length, decimals in (("GB", 1e9, 1), ("MB", 1e6, 1), ("kB", 1e3, 0)):
        if number >= 0.9995 * length:
            return f"{number / length:,.{decimals}f} {unit}"
    return f"{number:.0f} B"


def share(part: float) -> str:
    """A part of one, in per cent: a small one is not nothing."""
    if 0 < part < 0.001:
        return "< 0.1 %"
    return f"{part:.0%}".replace("%", " %") if part >= 0.0995 else f"{100 * part:.1f} %"


def duration(seconds: float) -> str:
    """`42 s`, `5 min`, `2 h 5 min`, `3 days 4 h`."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s" if seconds < 59.5 else "59 s"
    hours, minutes = divmod(minutes, 60)
    if hours < 1:
        return f"{minutes} min"
    days, hours = divmod(hours, 24)
    return f"{count(days, 'day')} {hours} h" if days else f"{hours} h {minutes} min"
