"""The tables of `moldau top`: their columns, how they are sorted, and what fits a narrow terminal.

A column has a rank: where the width is short, those of the highest rank are left out first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from moldau.cli.top.figures import (
    BrokerFigures,
    ClusterFigures,
    GroupFigures,
    PipelineFigures,
    QueueFigures,
    TopicFigures,
)
from moldau.cli.top.units import (
    UNKNOWN,
    byte_rate,
    count,
    count_rate,
    duration,
    percent,
    size,
)

R = TypeVar("R")
GAP: Final = 2
_TEXT_CHARACTERS: Final = 24
"""Texts are shortened to this before columns are left out, and then to the next."""
_TEXT_CHARACTERS_MIN: Final = 8
_STATE_STYLES: Final = {
    "ok": "green",
    "running": "green",
    "draining": "yellow",
    "starting": "yellow",
    "not ready": "yellow",
    "no response": "red",
    "rejects": "red",
    "down": "red",
    "failed": "red",
}


@dataclass(frozen=True)
class Column(Generic[R]):
    title: str
    value: Callable[[R], Any]
    """By which the rows are sorted."""
    text: Callable[[R], str]
    rank: int = 0
    right: bool = True
    style: Callable[[R], str] | None = None
    is_sorted_down: bool = True


@dataclass(frozen=True)
class View(Generic[R]):
    """One of the pages that keys choose."""

    name: str
    rows: Callable[[ClusterFigures], Sequence[R]]
    columns: tuple[Column[R], ...]
    sort: str
    """The title of the column by which it is sorted at first."""
    if_empty: str


def _text(title: str, field: str, *, rank: int = 0) -> Column[Any]:
    def value(row: Any) -> str:
        return str(getattr(row, field) or "")

    return Column(title, value, lambda row: value(row) or UNKNOWN, rank, False, None, False)


def _number(
    title: str,
    field: str,
    show: Callable[[float | None], str],
    *,
    rank: int = 0,
    red: Callable[[float], bool] = lambda value: False,
) -> Column[Any]:
    def style(row: Any) -> str:
        value = getattr(row, field)
        return "red" if value is not None and red(value) else ""

    def text(row: Any) -> str:
        return show(getattr(row, field))

    return Column(title, lambda row: getattr(row, field), text, rank, True, style)


def _state(title: str = "STATE") -> Column[Any]:
    def style(row: Any) -> str:
        return _STATE_STYLES.get(row.state, "")

    def text(row: Any) -> str:
        return str(row.state)

    return Column(title, text, text, 0, False, style, False)


def _some(value: float) -> bool:
    return value > 0


_broker_id: Final = Column[BrokerFigures](
    "BROKER",
    lambda row: row.id,
    lambda row: f"{row.id}{'*' * row.controller}",
    is_sorted_down=False,
)
_disk: Final = Column[BrokerFigures](
    "DISK",
    lambda row: (
        None
        if row.disk_free_bytes is None or not row.disk_total_bytes
        else 1 - row.disk_free_bytes / row.disk_total_bytes
    ),
    lambda row: percent(
        None
        if row.disk_free_bytes is None or row.disk_total_bytes is None
        else row.disk_total_bytes - row.disk_free_bytes,
        row.disk_total_bytes,
    ),
    rank=2,
    style=lambda row: (
        "red"
        if row.disk_free_bytes is not None
        and row.disk_total_bytes
        and row.disk_free_bytes < 0.1 * row.disk_total_bytes
        else ""
    ),
)
_cpu: Final = Column[BrokerFigures](
    "CPU", lambda row: row.cpu_cores, lambda row: percent(row.cpu_cores, 1.0), rank=1
)

BROKERS: Final = View[BrokerFigures](
    "cluster",
    lambda figures: figures.brokers,
    (
        _broker_id,
        _state(),
        _number("LEADERS", "leaders", count),
        _number("REPLICAS", "replicas", count, rank=7),
        _number("IN", "written_bytes", byte_rate),
        _number("OUT", "read_bytes", byte_rate),
        _number("PRODUCE", "produce_p99_seconds", duration, rank=6),
        _number("COMMIT", "commit_p99_seconds", duration, rank=5),
        _number("FLUSH", "flush_p99_seconds", duration, rank=3, red=lambda value: value > 0.5),
        _number("LOOP", "loop_delay_p99_seconds", duration, rank=2, red=lambda value: value > 0.2),
        _cpu,
        _number("MEMORY", "memory_bytes", size, rank=8),
        _disk,
        _number("CONNS", "connections", count, rank=9),
        _number("UP", "uptime_seconds", duration, rank=10),
    ),
    "BROKER",
    "no brokers",
)
_partitions: Final = Column[TopicFigures](
    "PARTITIONS", lambda row: row.partitions, lambda row: str(row.partitions)
)
TOPICS: Final = View[TopicFigures](
    "topics",
    lambda figures: figures.topics,
    (
        _text("TOPIC", "topic"),
        _partitions,
        _number("REPLICAS", "replicas", count, rank=4),
        _number("IN", "written_bytes", byte_rate),
        _number("IN REC", "written_records", count_rate, rank=1),
        _number("OUT", "read_bytes", byte_rate),
        _number("OUT REC", "read_records", count_rate, rank=2),
        _number("SIZE", "size_bytes", size, rank=0),
        _number("UNDER-REPL", "under_replicated", count, rank=3, red=_some),
        _number("NO LEADER", "leaderless", count, rank=3, red=_some),
    ),
    "IN",
    "no topics; create one: moldau topic create NAME",
)
_lag: Final = Column[GroupFigures](
    "LAG",
    lambda row: row.lag_records,
    lambda row: count(row.lag_records) + "+" * bool(row.partitions_unknown),
)
GROUPS: Final = View[GroupFigures](
    "groups",
    lambda figures: figures.groups,
    (
        _text("GROUP", "group"),
        _text("TOPIC", "topic"),
        _lag,
        _number("LAG TIME", "lag_seconds", duration),
        _number("UNKNOWN", "partitions_unknown", count, rank=1),
    ),
    "LAG",
    "no consumer group has committed an offset yet",
)
QUEUES: Final = View[QueueFigures](
    "queues",
    lambda figures: figures.queues,
    (
        _text("GROUP", "group"),
        _text("TOPIC", "topic"),
        _number("READY", "ready", count),
        _number("LEASED", "leased", count),
        _number("DELAYED", "delayed", count),
        _number("DEAD", "dead", count, red=_some),
        _number("DELIVERED", "deliveries", count_rate, rank=3),
        _number("AGAIN", "redeliveries", count_rate, rank=2),
        _number("ACKED", "acks", count_rate, rank=1),
        _number("ACK TIME", "settle_p99_seconds", duration, rank=4),
        _number("DEAD LETTERS", "dead_letters_total", count, rank=5),
    ),
    "READY",
    "no queue group has worked yet; start one: moldau queue work TOPIC -g GROUP",
)
RAFT: Final = View[BrokerFigures](
    "raft",
    lambda figures: figures.brokers,
    (
        _broker_id,
        _state(),
        _number("LEADERS", "leaders", count),
        _number("ELECTIONS", "elections_total", count),
        _number("NOW", "elections", count_rate, rank=5, red=_some),
        _number("EPOCHS", "epoch_changes", count_rate, rank=6),
        _number("LED", "leaderships_total", count, rank=7),
        _number("BEHIND", "behind_records", count),
        _number("BEHIND TIME", "behind_seconds", duration, rank=3, red=lambda value: value > 10),
        _number("PEERS", "peers_connected", count, rank=1),
        _number("SENT", "peer_sent_bytes", byte_rate, rank=2),
        _number("RECEIVED", "peer_received_bytes", byte_rate, rank=2),
        _number("SKEW", "clock_skew_seconds", duration, rank=4, red=lambda value: value > 1),
    ),
    "BROKER",
    "no brokers",
)
PIPELINES: Final = View[PipelineFigures](
    "pipelines",
    lambda figures: figures.pipelines,
    (
        _text("PIPELINE", "pipeline"),
        _text("KIND", "kind", rank=2),
        _state(),
        _number("ROWS", "rows", count_rate),
        _number("BATCHES", "batches", count_rate, rank=3),
        _number("LAG", "lag_records", count),
        _number("DEAD LETTERS", "dead_letters_total", count, rank=1, red=_some),
        _number("REPORTED", "age_seconds", duration, rank=1),
    ),
    "LAG",
    "no Spark pipeline reports; run one: moldau pipeline run --help",
)
VIEWS: Final[tuple[View[Any], ...]] = (BROKERS, TOPICS, GROUPS, QUEUES, RAFT, PIPELINES)
VIEW_NAMES: Final = tuple(view.name for view in VIEWS)


def column_of(view: View[R], title: str) -> Column[R]:
    """The column by which the rows are sorted; that of the view if it has none of that title."""
    named = {column.title.lower(): column for column in view.columns}
    return named.get(title.lower()) or named[view.sort.lower()]


def sorted_rows(rows: Sequence[R], column: Column[R], *, reverse: bool = False) -> list[R]:
    """The largest first, or texts by the alphabet; what is not known is last."""
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    # Stable: rows with one value keep their order.
    return sorted(known, key=column.value, reverse=column.is_sorted_down != reverse) + unknown


@dataclass(frozen=True)
class Fit(Generic[R]):
    """A column as it is shown."""

    column: Column[R]
    width: int
    cells: tuple[str, ...]


def fitted(
    columns: Sequence[Column[R]], rows: Sequence[R], width: int, *, sorted_by: str
) -> list[Fit[R]]:
    """The columns that fit into a width; the one that sorts is never left out."""
    found = [_fit(column, rows, marked=column.title == sorted_by) for column in columns]
    while (excess := _width(found) - width) > 0:
        droppable = [each for each in found if each.column.rank and each.column.title != sorted_by]
        if _spare(found, _TEXT_CHARACTERS) >= excess:
            return _shortened(found, excess, _TEXT_CHARACTERS)
        if droppable:
            found.remove(max(droppable, key=lambda each: each.column.rank))
        elif _spare(found, _TEXT_CHARACTERS_MIN) >= excess or len(found) == 1:
            return _shortened(found, excess, _TEXT_CHARACTERS_MIN)
        else:
            found.pop()
    return found


def _fit(column: Column[R], rows: Sequence[R], *, marked: bool) -> Fit[R]:
    cells = tuple(_one_line(column.text(row)) for row in rows)
    return Fit(column, max([len(column.title) + marked, *map(len, cells)]), cells)


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _width(fits: Sequence[Fit[Any]]) -> int:
    return sum(each.width for each in fits) + GAP * (len(fits) - 1)


def _spare(fits: Sequence[Fit[Any]], least: int) -> int:
    """What texts may be shortened by, to `least` characters each."""
    return sum(max(0, each.width - least) for each in fits if not each.column.right)


def _shortened(fits: Sequence[Fit[R]], excess: int, least: int) -> list[Fit[R]]:
    """Take the excess from the widest texts."""
    widths = {each.column.title: each.width for each in fits if not each.column.right}
    while excess > 0 and widths and max(widths.values()) > least:
        widths[max(widths, key=lambda title: widths[title])] -= 1
        excess -= 1
    return [
        Fit(each.column, widths.get(each.column.title, each.width), each.cells) for each in fits
    ]
