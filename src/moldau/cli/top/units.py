"""Figures as short texts, in units that fit their size."""

from typing import Final

UNKNOWN: Final = "–"
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS: Final = ("", "k", "M", "G", "T")
_SPARKS: Final = "▁▂▃▄▅▆▇█"


def count(value: float | None) -> str:
    """1234567 → 1.23M."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 10 and value != int(value):
        return f"{value:.1f}"
    if abs(value) < 10_000:
        return f"{value:.0f}"
    return _scaled(value, 1000, _COUNTS)


def size(value: float | None) -> str:
    """1536 → 1.50 KiB."""
    if value is None:
        return UNKNOWN
    if abs(value) < 1024:
        return f"{value:.0f} B"
    return _scaled(value, 1024, _BYTES, " ")


def byte_rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{size(value)}/s"


def count_rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{count(value)}/s"


def percent(part: float | None, whole: float | None) -> str:
    return UNKNOWN if part is None or not whole else f"{part / whole:.0%}"


def duration(value: float | None) -> str:
    """Seconds, from µs to days."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0 s"
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        milliseconds = value * 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if value < 120:
        return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"
    for seconds, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= 2 * seconds:
            return f"{value / seconds:.0f} {unit}"
    return f"{value:.0f} s"


def sparkline(values: list[float | None], width: int) -> str:
    """The last `width` values as bars, of which the highest is the largest value."""
    shown = values[-width:]
    top = max((value for value in shown if value is not None), default=0.0)
    return "".join(
        " " if value is None else _SPARKS[round(value / top * (len(_SPARKS) - 1)) if top else 0]
        for value in shown
    )


def _scaled(value: float, base: int, units: tuple[str, ...], space: str = "") -> str:
    """With three digits."""
    number = 0
    while abs(value) >= base * 0.9995 and number < len(units) - 1:
        value /= base
        number += 1
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{space}{units[number]}"
