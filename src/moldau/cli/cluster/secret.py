"""`moldau cluster secret`: changes what brokers prove to each other, and gives it to clusters of
older versions."""

from pathlib import Path
from typing import Final

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.output import say

_DIRECTORIES: Final = click.argument(
    "directories",
    metavar="DATA_DIR...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
)


@click.group(
    "secret",
    cls=LazyGroup,
    examples=(
        "moldau cluster secret create /var/lib/moldau",
        "moldau cluster secret rotate /var/lib/moldau",
        "scp /var/lib/moldau/cluster.secret host2.example:/var/lib/moldau/",
    ),
)
def secret() -> None:
    """What the brokers of a cluster prove to each other."""


@secret.command(
    "new",
    examples=(
        "moldau cluster secret new cluster.secret",
        "moldau cluster secret new /etc/moldau/cluster.secret",
        "moldau cluster secret new /run/secrets/moldau",
    ),
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
def new(file: Path) -> None:
    """Write the secret of a cluster that is to be made, for cluster_secret_file of its brokers.

    A file that exists is kept. Clusters whose brokers join with tokens do not need it.
    """
    from moldau.server.cluster_secret import new_secret_file

    say(f"wrote {file}" if new_secret_file(file) else f"{file} exists: kept")


@secret.command(
    "create",
    examples=(
        "moldau cluster secret create /var/lib/moldau",
        "moldau cluster secret create .moldau-cluster/broker-*",
        "moldau cluster secret create data1 data2 data3",
    ),
)
@_DIRECTORIES
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


@secret.command(
    "rotate",
    examples=(
        "moldau cluster secret rotate /var/lib/moldau",
        "moldau cluster secret rotate .moldau-cluster/broker-*",
        "moldau cluster secret rotate --finish /var/lib/moldau",
    ),
)
@click.option("--finish", is_flag=True, help="Remove the old secret: all brokers have the new one.")
@_DIRECTORIES
def rotate(directories: tuple[Path, ...], *, finish: bool) -> None:
    """Change the secret of a cluster, without stopping it.

    Writes a new secret, and keeps the old one, which stays accepted. Copy the file to all brokers,
    and restart one after the other: they read it when they start. Then do the same with --finish,
    which removes the old secret.
    """
    from moldau.server.cluster_secret import rotate_secret

    for path in rotate_secret(directories, is_last=finish):
        say(f"wrote {path}")
    say("copy the file to all other brokers of the cluster, and restart one after the other")
    if not finish:
        say("then remove the old secret: moldau cluster secret rotate --finish DATA_DIR")
