"""Options of several backup commands, the backup that they choose, and their progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Integer, Number
from moldau.cli.output import progress_bar

if TYPE_CHECKING:
    from moldau.client.backup.manifests import Manifest
    from moldau.client.backup.stores import BackupStore
    from moldau.client.backup.work import Pace

_MIB = 1024 * 1024

place_argument = click.argument("place", metavar="DIR|s3://BUCKET/PREFIX")
number_option = click.option(
    "--number",
    type=Integer(1),
    metavar="N",
    help="The backup of this number.  [default: the newest]",
)
parallel_option = click.option(
    "--parallel",
    type=Integer(1, 64),
    default=4,
    show_default=True,
    metavar="N",
    help="Partitions at a time; each needs some 40 MiB of memory.",
)
rate_option = click.option(
    "--mib-per-second",
    "rate",
    type=Number(min=0.01),
    metavar="N",
    help="Slow down to this rate, so that other clients are not.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress bar.")


def chosen_manifest(store: "BackupStore", number: int | None) -> "Manifest":
    """Raises ClientError."""
    from moldau.client.backup.manifests import load_manifest, manifest_numbers, require_mark

    require_mark(store)
    numbers = manifest_numbers(store)
    if not numbers:
        raise CommandError(
            f"{store.place} has no finished backup: the first one was cut short",
            hint=f"continue it: moldau backup create {store.place}",
        )
    if number is not None and number not in numbers:
        raise CommandError(
            f"{store.place} has no backup {number}",
            hint=f"list them: moldau backup list {store.place}",
            code=ExitCode.NOT_FOUND,
        )
    return load_manifest(store, number or numbers[-1])


@contextmanager
def progress(title: str, rate: float | None, quiet: bool) -> "Iterator[tuple[Pace, Any]]":
    """The pace of the workers, and a function that gets the number of offsets to do."""
    from contextlib import ExitStack

    from moldau.client.backup.work import Pace

    with ExitStack() as stack:
        shown: list[Any] = []

        def plan(offsets: int) -> None:
            shown.append(stack.enter_context(progress_bar(title, offsets, quiet)))

        pace = Pace((rate or 0.0) * _MIB, lambda offsets: shown[-1](offsets) if shown else None)
        yield pace, plan
