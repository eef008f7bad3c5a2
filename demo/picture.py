"""The picture: throughput over time with the gap in it, in the terminal and as a PNG."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from demo.load import BUCKET_SECONDS, Gap

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_LABEL: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happened, in seconds since the load began."""

    seconds: float
    acks_per_second: Sequence[float]
    """In steps of BUCKET_SECONDS."""
    stricken_per_second: Sequence[float] = ()
    """The same, of the partition whose leader was killed."""
    lag: Sequence[tuple[float, float]] = ()
    killed_at: float | None = None
    restarted_at: float | None = None
    gap: Gap = field(default=Gap(0.0, 0.0))
    """Of that partition."""
    broker: int | None = None
    is_whole: bool = True
    """What the audit said."""

    @property
    def end(self) -> float:
        """Of the lag, which goes on after the last click."""
        return max([self.seconds, *(moment for moment, _ in self.lag)])


def resampled(values: Sequence[float], width: int) -> list[float]:
    """As many as there are columns: the mean of what falls into each."""
    if not values:
        return [0.0] * width
    edges = [len(values) * number // width for number in range(width + 1)]
    result = []
    for first, last in pairwise(edges):
        some = values[first : max(last, first + 1)]
        result.append(sum(some) / len(some))
    return result


def bars(values: Sequence[float], height: int) -> list[str]:
    """A chart of blocks, the highest line first. What is not zero is seen."""
    top = max(values, default=0.0) or 1.0
    eighths = [max(1 if value > 0 else 0, round(value / top * height * 8)) for value in values]
    lines = []
    for row in reversed(range(height)):
        cells = (_BLOCKS[min(8, max(0, level - 8 * row))] for level in eighths)
        lines.append("".join(cells))
    return lines


def in_terminal(story: Story, *, columns: int = 80, height: int = 6) -> str:
    """The whole picture as text."""
    width = max(20, columns - _LABEL - 2)
    charts = [
        ("clicks taken per second", resampled(story.acks_per_second, width), height, story.seconds)
    ]
    if story.stricken_per_second:
        title = (
            f"the same, of the partition whose leader was killed: nothing for "
            f"{story.gap.seconds:.1f} s"
        )
        stricken = resampled(story.stricken_per_second, width)
        charts.append((title, stricken, height, story.seconds))
    if story.lag:
        lag = _by_time(story.lag, story.end, width)
        charts.append(("clicks not yet in the lake", lag, max(2, height // 2), story.end))
    lines: list[str] = []
    for title, values, rows, end in charts:
        marks = f"{'':>{_LABEL}}  {_marks(story, width, end)}"
        lines += ["", title, *_chart(values, rows), marks]
    return "\n".join(lines[1:])


def _chart(values: Sequence[float], height: int) -> list[str]:
    lines = []
    for number, line in enumerate(bars(values, height)):
        label = f"{max(values):,.0f}" if number == 0 else "0" if number == height - 1 else ""
        lines.append(f"{label:>{_LABEL}} │{line}")
    return [*lines, f"{'':>{_LABEL}} └{'─' * len(values)}"]


def _marks(story: Story, width: int, seconds: float) -> str:
    """Below the time axis: what happened when."""
    line = [" "] * width
    end = f"{seconds:.0f} s"
    marks = [(0.0, "0 s"), (story.killed_at, "✗ killed"), (story.restarted_at, "↑ back")]
    for moment, text in marks:
        if moment is None:
            continue
        place = min(width - len(text), int(moment / seconds * width))
        line[place : place + len(text)] = text
    line[width - len(end) :] = end
    return "".join(line)


def _by_time(samples: Sequence[tuple[float, float]], seconds: float, width: int) -> list[float]:
    """The last one known at every column."""
    result = []
    place, value = 0, 0.0
    for column in range(width):
        moment = (column + 1) * seconds / width
        while place < len(samples) and samples[place][0] <= moment:
            value = samples[place][1]
            place += 1
        result.append(value)
    return result


def save_png(story: Story, path: Path) -> None:
    """Needs matplotlib: the extra `demo`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 6), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    times = [number * BUCKET_SECONDS for number in range(len(story.acks_per_second))]
    above.fill_between(times, story.acks_per_second, step="post", color="#4c78a8", alpha=0.4)
    if story.stricken_per_second:
        above.step(times, story.stricken_per_second, where="post", color="#1f4e79", linewidth=1)
    above.legend(["all partitions", "the one whose leader was killed"], loc="upper left")
    above.set_ylabel("clicks taken per second")
    above.set_ylim(bottom=0)
    if story.gap.seconds > 0:
        above.axvspan(story.gap.start, story.gap.end, color="#e45756", alpha=0.3)
        above.annotate(
            f"nothing taken there for {story.gap.seconds:.1f} s",
            (story.gap.end, above.get_ylim()[1] * 0.92),
            xytext=(6, 0),
            textcoords="offset points",
        )
    if story.lag:
        below.plot(*zip(*story.lag, strict=True), color="#f58518")
    below.set_ylabel("not yet in the lake")
    below.set_ylim(bottom=0)
    below.set_xlabel("seconds")
    marks = ((story.killed_at, "killed", "#e45756"), (story.restarted_at, "back", "#54a24b"))
    for moment, text, color in marks:
        if moment is not None:
            for axes in (above, below):
                axes.axvline(moment, color=color, linestyle="--", linewidth=1)
            below.text(moment, below.get_ylim()[1] * 0.9, f" broker {story.broker} {text}")
    verdict = "nothing lost, nothing doubled" if story.is_whole else "NOT all is in the lake"
    above.set_title(f"A leader is killed under load: {verdict}")
    figure.savefig(path, dpi=120)
    plt.close(figure)
