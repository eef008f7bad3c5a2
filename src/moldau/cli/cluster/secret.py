"""`moldau cluster secret`: gives clusters of older versions the secret that brokers need."""

from pathlib import Path

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.output import say


@click.group(
    "secret",
    cls=LazyGroup,
    examples=(
        "moldau cluster secret create /var/lib/moldau",
        "moldau cluster secret create .moldau-cluster/broker-*",
        "scp /var/lib/moldau/cluster.secret host2.example:/var/lib/moldau/",
    ),
)
def secret() -> None:
    """What the brokers of a cluster prove to each other."""


@secret.command(
    "create",
    examples=(
        "moldau cluster secret create /var/lib/moldau",
        "moldau cluster secret create .moldau-cluster/broker-*",
        "moldau cluster secret create data1 data2 data3",
    ),
)
@click.argument(
    "directories",
    metavar="DATA_DIR...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
)
def create(directories: tuple[Path, ...]) -> None:
    """Give the data directories of a cluster that an older version created one secret.

    Directories that have it already keep it, and the others get the same. New clusters need this
    never: bootstrap creates the secret, and brokers receive it when they join.
    """
    from moldau.server.cluster_secret import give_secret

    written = give_secret(directories)
    for path in written:
        say(f"wrote {path}")
    if not written:
        say("nothing to do: all of them have it")
    say("every broker of the cluster needs the same file: copy it to those on other machines")
