"""Every command that talks to brokers can log in."""

from collections.abc import Iterator

import click
import pytest

from moldau.cli.connection.options import SECTION, ConnectionOption
from moldau.cli.main import cli

LOCAL = {
    *(
        "broker start",
        "dev",
        "cluster start",
        "cluster run",
        "cluster stop",
        "config",
        "config init",
    ),
    *(
        "backup list",
        "backup prune",
        "broker health",
        "certs dev",
        "cluster cut",
        "cluster heal",
        "cluster pause",
        "cluster recover apply",
        "cluster recover collect",
        "cluster recover plan",
        "cluster resume",
        "cluster secret create",
        "cluster secret new",
        "cluster secret rotate",
        "cluster slow",
        "config show",
        "completion",
        "logout",
        "profile list",
        "profile remove",
        "profile show",
        "profile use",
        "profile delete",
    ),
}
"""Commands that connect to no broker."""


def commands(
    group: click.Group, ctx: click.Context, path: str = ""
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        assert found is not None
        inner = click.Context(found, info_name=name, parent=ctx)
        if isinstance(found, click.Group):
            yield from commands(found, inner, f"{path}{name} ")
        else:
            yield f"{path}{name}", found, inner


ALL = {path: (found, ctx) for path, found, ctx in commands(cli, click.Context(cli))}


@pytest.mark.parametrize("path", sorted(ALL))
def test_it_has_the_options_of_connections_or_is_local(path: str) -> None:
    found, ctx = ALL[path]
    params = found.get_params(ctx)
    names = {name for param in params for name in param.opts}
    has_all = {"--user", "--password-file", "--cafile", "--certfile", "--keyfile"} <= names
    assert has_all != (path in LOCAL)
    has_address = {"--brokers", "--http", "--grpc"} & names
    assert has_all or not has_address


@pytest.mark.parametrize("path", sorted(ALL))
def test_no_option_has_the_name_of_another(path: str) -> None:
    found, ctx = ALL[path]
    names = [
        name for param in found.get_params(ctx) for name in (*param.opts, *param.secondary_opts)
    ]
    assert len(names) == len(set(names))
    # Nor its value: click keeps values by parameter, and the last one would count for both.
    parameters = [param.name for param in found.get_params(ctx)]
    assert len(parameters) == len(set(parameters))


@pytest.mark.parametrize("path", sorted(ALL))
def test_no_option_takes_a_password(path: str) -> None:
    found, ctx = ALL[path]
    for param in found.get_params(ctx):
        assert not {"--password", "--token", "--secret"} & set(param.opts)


def test_they_stand_in_a_section_of_their_own() -> None:
    found, ctx = ALL["topic list"]
    options, connection = found.get_help(ctx).split(f"\n{SECTION}:\n")
    assert "--brokers" in options
    for param in found.get_params(ctx):
        if isinstance(param, ConnectionOption):
            assert param.opts[0] in connection
            assert param.opts[0] not in options
