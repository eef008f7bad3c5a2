"""One frame as text, at the width of a narrow and of a wide terminal."""

import pytest
from top_snapshots import AT, answer, snapshot, topic, topology

from moldau.cli.top.compute import compute
from moldau.cli.top.figures import ClusterFigures
from moldau.cli.top.poller import Answer
from moldau.cli.top.screen import Choices, Frame, History
from moldau.cli.top.tables import VIEWS, column_of, sorted_rows

LONG = "a-topic-with-a-name-that-is-longer-than-a-narrow-terminal-has-room-for-in-one-of-its-lines"


def figures() -> ClusterFigures:
    def text(number: int) -> str:
        labels = f'{{group="group-{number}",topic="{LONG}"}}'
        return (
            f"moldau_written_bytes_total {number * 3_000_000}\n"
            f"moldau_written_records_total {number * 20_000}\n"
            f"process_cpu_seconds_total {number}\n"
            f'moldau_topic_written_bytes_total{{topic="{LONG}"}} {number * 100}\n'
            f'moldau_topic_log_bytes{{topic="small"}} {number * 100}\n'
            f"moldau_group_lag{labels} {number * 1000}\n"
            f"moldau_group_lag_unknown_partitions{labels} {number % 2}\n"
        )

    found = topology(
        [
            topic(LONG, [1, 2]),
            topic("small", [1], in_sync=[1, 2]),
            topic("__consumer_offsets", [1], internal=True),
        ],
        down=[3],
    )
    old = "moldau_written_bytes_total 0\nmoldau_written_records_total 0\n"
    answers = {1: answer(old, text(1)), 2: answer(old, text(2)), 3: Answer(None, "refused")}
    return compute(snapshot(found, answers))


def frame(width: int, view: int = 0, height: int | None = None, **chosen) -> list[str]:
    choices = Choices(view=view, **chosen)
    history = History()
    history.add(figures())
    interval = None if height is None else 2.0
    shown = Frame(figures(), choices, history, width, height, interval)
    return [line.plain for line in shown.lines()]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("view", range(len(VIEWS)))
def test_no_line_is_wider_than_the_terminal(view, width):
    for height in (None, 24, 5):
        lines = frame(width, view, height)
        assert max(map(len, lines)) <= width, lines


def test_the_view_of_the_cluster_at_80_columns():
    lines = frame(80)
    assert lines[0].startswith("moldau top  cluster c1u5ter ")
    assert lines[1:5] == [
        "degraded: broker 3 is not alive; 1 partition under-replicated",
        "remedy: start it: moldau broker start --data-dir DIR, with its usual options · …",
        "remedy: start broker 3, and wait until in sync: moldau broker status 3",
        "In        4.29 MiB/s    30.0k records/s  █",
    ]
    assert lines[-4:] == [
        "BROKER▼  STATE  LEADERS          IN  OUT  COMMIT  FLUSH  LOOP   CPU  DISK",
        "     1*  ok           2  1.43 MiB/s    –       –      –     –   50%     –",
        "      2  ok           2  2.86 MiB/s    –       –      –     –  100%     –",
        "      3  down         2           –    –       –      –     –     –     –",
    ]


def test_a_wide_terminal_has_more_columns():
    (heads,) = [line for line in frame(120) if line.startswith("BROKER")]
    for title in ("REPLICAS", "PRODUCE", "MEMORY", "CONNS"):
        assert title in heads


def test_long_names_are_cut_before_columns_are_left_out():
    lines = frame(120, VIEWS.index(topics_view()))
    (row,) = [line for line in lines if line.startswith("a-topic-with")]
    assert row.split()[0].endswith("…")
    assert "UNDER-REPL" in lines[-3]


def topics_view():
    return next(view for view in VIEWS if view.name == "topics")


def test_internal_topics_are_shown_on_request():
    view = VIEWS.index(topics_view())
    assert not any("__consumer_offsets" in line for line in frame(120, view))
    assert any("__consumer_offsets" in line for line in frame(120, view, shows_internal=True))


def test_rows_are_sorted_and_what_is_not_known_is_last():
    view, rows = topics_view(), figures().topics
    by_rate = sorted_rows(rows, column_of(view, "IN"))
    assert [row.topic for row in by_rate] == [LONG, "small", "__consumer_offsets"]
    by_rate = sorted_rows(rows, column_of(view, "IN"), reverse=True)
    assert by_rate[0].topic == LONG, "the only one that is known"
    by_name = sorted_rows(rows, column_of(view, "TOPIC"))
    assert [row.topic for row in by_name] == ["__consumer_offsets", LONG, "small"]


def test_a_lag_that_is_not_whole_has_a_plus():
    lines = frame(80, 2)
    assert [line.split()[0] for line in lines[-2:]] == ["group-2", "group-1"]
    assert lines[-1].split()[2:4] == ["1000+", "–"]


def test_a_short_terminal_scrolls():
    whole = frame(80, 1, 24, shows_internal=True)
    assert len(whole) == 24
    short = frame(80, 1, 9, shows_internal=True)
    assert len(short) == 9
    assert "rows 1 to 1 of 3" in short
    assert "rows 3 to 3 of 3" in frame(80, 1, 9, shows_internal=True, first_row=99)


def test_a_live_frame_names_the_keys_and_the_interval():
    lines = frame(80, 0, 24)
    assert lines[0].endswith("every 2 s")
    assert lines[-1].startswith("1-6 view · q quit · s sort")
    assert frame(80, 0, 24, is_paused=True)[0].endswith("paused")


def test_a_view_without_rows_names_the_next_step():
    (line,) = [line for line in frame(80, 3) if "queue" in line and "moldau" in line]
    assert "moldau queue work" in line


def test_the_time_is_that_of_the_snapshot():
    import time

    assert time.strftime("%H:%M:%S", time.localtime(AT)) in frame(80)[0]
