"""The Prometheus text format for metrics, version 0.0.4."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct, field

from moldau.model.histogram import SECONDS, Histogram

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_NO_LABELS: Final[Mapping[str, str]] = {}


class MetricFamily(Struct, frozen=True):
    """One metric with all its samples; omitted if it has none."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)
    """Suffix of the sample's name, its labels, and its value."""

    def add(self, value: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        self.samples.append(("", labels, value))

    def add_durations(self, durations: Histogram, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Buckets are cumulative, as the format requires."""
        total = 0
        for bound, count in zip((*SECONDS, math.inf), durations.counts, strict=True):
            total += count
            self.samples.append(("_bucket", {**labels, "le": _number(bound)}, total))
        self.samples.append(("_sum", labels, durations.sum))
        self.samples.append(("_count", labels, total))


def counter(name: str, help_text: str, value: float | None = None) -> MetricFamily:
    return _family(MetricFamily(name, "counter", help_text), value)


def gauge(name: str, help_text: str, value: float | None = None) -> MetricFamily:
    return _family(MetricFamily(name, "gauge", help_text), value)


def histogram(name: str, help_text: str) -> MetricFamily:
    return MetricFamily(name, "histogram", help_text)


def _family(family: MetricFamily, value: float | None) -> MetricFamily:
    if value is not None:
        family.add(value)
    return family


def render(families: Iterable[MetricFamily]) -> str:
    lines = list(lines_of(families))
    return "\n".join(lines) + "\n" if lines else ""


def lines_of(families: Iterable[MetricFamily]) -> Iterator[str]:
    for family in families:
        if not family.samples:
            continue
        yield f"# HELP {family.name} {_escape(family.help)}"
        yield f"# TYPE {family.name} {family.kind}"
        for suffix, labels, value in family.samples:
            yield f"{family.name}{suffix}{_labels(labels)} {_number(value)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items()) + "}"


def _quoted(text: str) -> str:
    # Names come from clients: invalid UTF-8 must not make the whole response invalid.
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return _escape(clean).replace('"', '\\"')


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"
