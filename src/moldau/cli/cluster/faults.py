"""`moldau cluster pause`, `resume`, `cut`, `slow`, `heal`: faults on purpose, to learn from."""

from pathlib import Path

import click

from moldau.cli.click_groups import command
from moldau.cli.cluster.directory import complete_members, dir_option
from moldau.cli.cluster.status import dir_flag, supervised_state
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Duration
from moldau.cli.output import say
from moldau.model.play import DELAY_MS_MAX, PAUSE_SECONDS, PAUSE_SECONDS_MAX
from moldau.supervisor.control import send_request

_NUMBER = click.argument("number", metavar="N", type=int, shell_complete=complete_members)


def _ask(data_dir: Path, verb: str, **arguments: object) -> None:
    """Raises CommandError, SupervisorError."""
    control = supervised_state(data_dir).control
    reply = send_request(control, verb, by="the command line", **arguments)
    if reply is None:
        raise CommandError("the supervisor has exited", hint="check it: moldau cluster status")


@command(
    "pause",
    examples=(
        "moldau cluster pause 2",
        "moldau cluster pause 2 --for 30s",
        "moldau cluster pause 2 && moldau broker status   # its leaders move to others",
    ),
)
@_NUMBER
@click.option(
    "--for",
    "seconds",
    type=Duration(),
    default=f"{PAUSE_SECONDS}s",
    show_default=True,
    help=f"It goes on by itself after this; at most {PAUSE_SECONDS_MAX}s.",
)
@dir_option
def pause(number: int, seconds: float, data_dir: Path) -> None:
    """Freeze a broker with SIGSTOP, as a stalled machine would: it keeps its connections, and
    answers nobody."""
    whole = round(seconds)
    if not 1 <= whole <= PAUSE_SECONDS_MAX:
        raise CommandError(
            f"a pause lasts 1 to {PAUSE_SECONDS_MAX} s, not {seconds:g}", code=ExitCode.USAGE
        )
    _ask(data_dir, "pause", id=number, seconds=whole)
    say(
        f"paused broker {number} for {whole} s; end it earlier: "
        f"moldau cluster resume {number}{dir_flag(data_dir)}"
    )


@command(
    "resume",
    examples=(
        "moldau cluster resume 2",
        "moldau cluster resume 2 --data-dir /var/lib/moldau",
        "moldau cluster resume 2 && moldau cluster status",
    ),
)
@_NUMBER
@dir_option
def resume(number: int, data_dir: Path) -> None:
    """Let a paused broker go on."""
    _ask(data_dir, "resume", id=number)
    say(f"broker {number} goes on")


@command(
    "cut",
    examples=(
        "moldau cluster cut 1 2",
        "moldau cluster cut 1 2 --mend",
        "moldau cluster cut 1 2 && moldau cluster cut 1 3   # broker 1 is alone",
    ),
)
@_NUMBER
@click.argument("other", metavar="M", type=int, shell_complete=complete_members)
@click.option("--mend", is_flag=True, help="Mend the link instead.")
@dir_option
def cut(number: int, other: int, mend: bool, data_dir: Path) -> None:
    """Cut the link between two brokers: nothing passes, in both directions, as if packets were
    lost. Clients reach both."""
    _ask(data_dir, "link", id=number, other=other, is_cut=not mend)
    if mend:
        say(f"mended the link between brokers {number} and {other}")
        return
    say(
        f"cut the link between brokers {number} and {other}; mend it: "
        f"moldau cluster cut {number} {other} --mend{dir_flag(data_dir)}"
    )


@command(
    "slow",
    examples=(
        "moldau cluster slow 2",
        "moldau cluster slow 2 --by 1s",
        "moldau cluster slow 2 --by 0   # as fast as its disk is",
    ),
)
@_NUMBER
@click.option(
    "--by",
    "seconds",
    type=Duration(),
    default="200ms",
    show_default=True,
    help=f"Delay of each flush; at most {DELAY_MS_MAX}ms, 0 ends it.",
)
@dir_option
def slow(number: int, seconds: float, data_dir: Path) -> None:
    """Delay each flush of a broker, as a slow disk would."""
    delay_ms = round(seconds * 1000)
    _ask(data_dir, "disk", id=number, delay_ms=delay_ms)
    if not delay_ms:
        say(f"flushes of broker {number} are not delayed any more")
        return
    say(
        f"each flush of broker {number} takes {delay_ms} ms longer; end it: "
        f"moldau cluster slow {number} --by 0{dir_flag(data_dir)}"
    )


@command(
    "heal",
    examples=(
        "moldau cluster heal",
        "moldau cluster heal --data-dir /var/lib/moldau",
        "moldau cluster heal && moldau cluster status",
    ),
)
@dir_option
def heal(data_dir: Path) -> None:
    """End all faults: paused brokers go on, links are mended, flushes are fast, and brokers that
    are down start."""
    _ask(data_dir, "heal")
    say("all faults have ended; brokers that were down start")
