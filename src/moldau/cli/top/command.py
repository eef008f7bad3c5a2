"""`moldau top`: options, and the ways to show frames: live, printed, as JSON, as a picture."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.click_groups import command
from moldau.cli.cluster.topology import http_option
from moldau.cli.connection.current import current_security
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Duration, Integer
from moldau.cli.output import color_wanted, emit_json
from moldau.cli.signals import output_closed
from moldau.cli.top.tables import VIEW_NAMES, VIEWS

if TYPE_CHECKING:
    from rich.console import Console

    from moldau.cli.top.figures import ClusterFigures
    from moldau.cli.top.poller import Poller
    from moldau.cli.top.screen import Choices

INTERVAL_SECONDS: Final = 2.0
_INTERVAL_MIN: Final = 0.2
_ONCE_SECONDS_MAX: Final = 1.0
"""Between the two scrapes of the first frame."""
_PRINTED_WIDTH: Final = 120
"""Where there is no terminal."""
_PICTURE_WIDTH: Final = 110
_EXIT_CODES: Final = {"healthy": ExitCode.OK, "unreachable": ExitCode.UNREACHABLE}


@command(
    "top",
    examples=(
        "moldau top",
        "moldau top --view topics --sort out --http host1.example:8080,host2.example:8080",
        "moldau top --once -o json | jq .health",
    ),
)
@click.option(
    "-v",
    "--view",
    type=click.Choice(VIEW_NAMES),
    default=VIEW_NAMES[0],
    show_default=True,
    help="What to show first; keys 1 to 6 switch.",
)
@click.option("--sort", default="", metavar="COLUMN", help="Sort by the column of this title.")
@click.option(
    "-i",
    "--interval",
    type=Duration(),
    default=f"{INTERVAL_SECONDS:g}s",
    show_default=True,
    metavar="DURATION",
    help="Refresh at this interval.",
)
@click.option(
    "-n",
    "--count",
    type=Integer(1),
    help="Print N frames, and exit.  [default: 1 without a terminal, or with -o json or --svg]",
)
@click.option("--once", is_flag=True, help="The same as -n 1.")
@click.option("-a", "--all", "shows_internal", is_flag=True, help="Include internal topics.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="Output format; JSON has the figures of all views, one document per line with -n.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the last frame as a picture (SVG), and print none.",
)
@http_option
def top(
    view: str,
    sort: str,
    interval: float,
    count: int | None,
    once: bool,
    shows_internal: bool,
    output: str,
    svg: Path | None,
    http: str,
) -> int:
    """Watch a cluster: health, throughput, latency, lag, queues, elections and pipelines.

    The figures are those of /metrics of all brokers, which are found through any of them. Rates are
    of the last interval. Prints frames, and exits with 0 if the cluster is healthy, 1 if it is
    degraded, 3 if no broker responds, with --once or -n, or without a terminal.
    """
    from moldau.cli.top.poller import Poller
    from moldau.cli.top.screen import Choices

    interval = max(_INTERVAL_MIN, interval)
    choices = Choices(view=VIEW_NAMES.index(view), shows_internal=shows_internal)
    if sort:
        choices.sort[view] = _title(view, sort)
    poller = Poller(http.split(","), current_security())
    first = poller.start()
    frames = 1 if once else count
    if frames is None and output == "table" and svg is None and _has_terminal():
        from moldau.cli.top.live import show_live

        with suppress(KeyboardInterrupt, EOFError):
            show_live(poller, first, choices, interval, _console())
        return ExitCode.OK
    return _print(poller, choices, interval, frames or 1, output, svg)


def _title(view: str, sort: str) -> str:
    titles = [column.title for column in VIEWS[VIEW_NAMES.index(view)].columns]
    found = [title for title in titles if title.lower() == sort.lower().replace("_", " ")]
    if not found:
        raise CommandError(
            f"the view {view} has no column {sort}",
            hint=f"columns: {', '.join(titles).lower()}",
            code=ExitCode.USAGE,
        )
    return found[0]


def _has_terminal() -> bool:
    import os

    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _print(
    poller: "Poller",
    choices: "Choices",
    interval: float,
    count: int,
    output: str,
    svg: Path | None,
) -> int:
    from moldau.cli.top.screen import Frame, History

    console, history = _console(), History()
    health = "unreachable"
    for number, figures in enumerate(_frames(poller, interval, count)):
        history.add(figures)
        health = figures.health
        if output == "json":
            emit_json(asdict(figures), indent=2 if count == 1 else None)
        elif svg is None:
            if number:
                click.echo()
            lines = Frame(figures, choices, history, console.width).lines()
            for line in lines:
                console.print(line)
        else:
            write_picture(svg, Frame(figures, choices, history, _PICTURE_WIDTH))
        sys.stdout.flush()
        if output_closed():
            raise BrokenPipeError
    return _EXIT_CODES.get(health, ExitCode.FAILED)


def _frames(poller: "Poller", interval: float, count: int) -> "Iterator[ClusterFigures]":
    """Each after a pause; the poller has started."""
    from moldau.cli.top.compute import compute

    for number in range(count):
        time.sleep(interval if number else min(interval, _ONCE_SECONDS_MAX))
        yield compute(poller.poll())


def _console() -> "Console":
    """Plain text where colours are not wanted; the width is that of the terminal."""
    from rich.console import Console

    has_color = color_wanted()
    # Without a terminal the width is given by COLUMNS, or is enough for all columns.
    width = None if sys.stdout.isatty() else _width()
    return Console(
        width=width,
        no_color=not has_color,
        color_system="auto" if has_color else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def _width() -> int:
    import os

    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() and int(text) else _PRINTED_WIDTH


def write_picture(path: Path, frame: Any) -> None:
    """Write a frame as an SVG. It names no other host: the font is that of the reader."""
    import io

    from rich.console import Console

    console = Console(
        record=True,
        width=frame.width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    for line in frame.lines():
        console.print(line)
    picture = console.export_svg(title="moldau top", unique_id="moldau-top")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)
    picture = picture.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    # No spaces at the ends of lines.
    path.write_text(re.sub(r"[ \t]+$", "", picture, flags=re.M), "utf-8")
