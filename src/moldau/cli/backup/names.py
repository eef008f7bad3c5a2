"""Options that choose topics of a backup, and the names they get in another cluster."""

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moldau.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from moldau.client.backup.manifests import Manifest

_F = TypeVar("_F", bound=Callable[..., Any])


def topics_option(function: _F) -> _F:
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="NAME",
        help="Only this topic, or all that match, as 'orders*'; may be repeated.",
    )(function)


def names_options(function: _F) -> _F:
    """--prefix and --rename."""
    rename = click.option(
        "--rename",
        "renames",
        multiple=True,
        metavar="OLD=NEW",
        help="The name of a topic in the cluster; may be repeated.",
    )
    prefix = click.option("--prefix", default="", metavar="TEXT", help="Put before all names.")
    return rename(prefix(function))


def topic_filter(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a topic is chosen; without patterns each is."""
    return lambda name: not patterns or any(fnmatchcase(name, each) for each in patterns)


def unmatched(patterns: Sequence[str], names: Collection[str]) -> list[str]:
    """Those of --topic that choose nothing: they may be misspelt."""
    return [each for each in patterns if not any(fnmatchcase(name, each) for name in names)]


def check_chosen(
    manifest: "Manifest", patterns: Sequence[str] = (), renames: Sequence[str] = ()
) -> None:
    """Raises CommandError for a --topic or --rename that is about no topic of the backup."""
    names = {topic.name for topic in manifest.cluster.topics}
    missing = unmatched(patterns, names)
    missing += [old for each in renames if (old := each.partition("=")[0]) not in names]
    if missing:
        raise CommandError(
            f"backup {manifest.number} has no topic {missing[0]}",
            hint="list its topics: moldau backup list DIR --topics",
            code=ExitCode.NOT_FOUND,
        )


def new_names(prefix: str, renames: Sequence[str]) -> Callable[[str], str]:
    """The new name of a topic. Raises CommandError."""
    known: dict[str, str] = {}
    for each in renames:
        old, equals, new = each.partition("=")
        if not (old and equals and new):
            raise CommandError(f"{each!r} is not OLD=NEW", code=ExitCode.USAGE)
        known[old] = new
    return lambda name: known.get(name, f"{prefix}{name}")
