"""How a running pipeline looks."""

import io

import pytest

from moldau.cli.pipeline.display import BAR_CHARACTERS, Display, bar_text, facts
from moldau.cli.pipeline.run_options import default_name
from moldau.cli.pipeline.view import duration
from moldau.spark.pipelines.spec import PipelineState, Progress
from moldau.spark.pipelines.status import PipelineStatus

pytestmark = pytest.mark.inprocess


def test_the_facts_are_on_one_line():
    progress = Progress(
        batch=3,
        rows=1500,
        rows_total=3000,
        rows_per_second=1234.5,
        lag=1500,
        batch_seconds=0.52,
        dead_letters=2,
        note="hm",
    )
    assert facts(progress) == (
        "1,500 of 3,000 rows · 1,234 rows/s · lag 1,500 · batch 0.5 s · 2 dead letters · hm"
    )


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (Progress(rows=1, rows_total=4), " 25%"),
        (Progress(rows=3, lag=1), " 75%"),
        (Progress(rows=7, rows_total=7), "100%"),
    ],
)
def test_a_bar_is_as_full_as_much_is_done(progress, share):
    bar = bar_text(progress)
    assert bar is not None
    assert bar.endswith(share)
    full = bar.count("#") / BAR_CHARACTERS
    assert abs(full - float(share.strip(" %")) / 100) <= 1 / BAR_CHARACTERS


def test_without_a_total_there_is_no_bar():
    assert bar_text(Progress(rows=5)) is None
    assert bar_text(Progress()) is None


def test_the_last_line_does_not_say_what_it_was_doing_just_then():
    stream = io.StringIO()
    progress = Progress(
        batch=1, rows=9, rows_per_second=0.0, batch_seconds=0.1, dead_letters=1, note="comparing"
    )
    with Display(stream) as display:
        for state in (PipelineState.RUNNING, PipelineState.FINISHED):
            display(PipelineStatus(name="n", kind="k", state=state, progress=progress))
    assert stream.getvalue().splitlines() == [
        "n running: 9 rows · 0 rows/s · batch 0.1 s · 1 dead letter · comparing",
        "n finished: 9 rows · 1 dead letter",
    ]


def test_without_a_terminal_each_state_is_a_line():
    stream = io.StringIO()
    with Display(stream) as display:
        for state, rows in (
            (PipelineState.STARTING, 0),
            (PipelineState.RUNNING, 5),
            (PipelineState.RUNNING, 6),
        ):
            display(PipelineStatus(name="n", kind="k", state=state, progress=Progress(rows=rows)))
        display(
            PipelineStatus(
                name="n", kind="k", state=PipelineState.FINISHED, progress=Progress(rows=7)
            )
        )
    assert stream.getvalue().splitlines() == [
        "n starting",
        "n running: 5 rows · 0 dead letters",
        "n finished: 7 rows · 0 dead letters",
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_it_is_a_bar_that_goes_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    with Display(stream) as display:
        display(
            PipelineStatus(
                name="lake",
                kind="k",
                state=PipelineState.RUNNING,
                progress=Progress(batch=1, rows=5, rows_total=10, rows_per_second=9.0, lag=5),
            )
        )
    assert "lake" in stream.getvalue()
    assert "5 of 10 rows · 9 rows/s · lag 5" in stream.getvalue()


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (59_999, "59s"), (125_000, "2m 5s"), (273_600_000, "3d 4h"), (-5, "0s")],
)
def test_durations_have_two_units(milliseconds, text):
    assert duration(milliseconds) == text


def test_names_are_the_same_for_the_same_words_and_differ_for_others():
    assert default_name("archive", ["clicks"]) == "archive-clicks"
    assert default_name("archive", ["a b"]) == default_name("archive", ["a b"])
    assert default_name("archive", ["a b"]) != default_name("archive", ["a-b"])
    assert len(default_name("archive", ["x" * 300])) <= 100
