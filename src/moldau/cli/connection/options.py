"""The options for TLS and users, which every command that talks to brokers has."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

SECTION: Final = "Connection"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_F = TypeVar("_F", bound=Callable[..., Any])


class ConnectionOption(click.Option):
    """Its value is kept for `current.chosen`, not passed to the command."""

    section = SECTION

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Eager: completion of arguments connects with them.
        super().__init__(*args, **kwargs, expose_value=False, is_eager=True, callback=_keep)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value is not None and param.name is not None:
        source = ctx.get_parameter_source(param.name)
        values(ctx)[param.name] = (value, source is click.core.ParameterSource.COMMANDLINE)
    return value


def values(ctx: click.Context) -> dict[str, tuple[Any, bool]]:
    """The options that are set: the value, and whether it is from the command line."""
    found: dict[str, tuple[Any, bool]] = ctx.meta.setdefault(__name__, {})
    return found


_OPTIONS: Final = (
    ("--user", "MOLDAU_USER", "NAME", "Log in as this user"),
    (
        "--password-file",
        "MOLDAU_PASSWORD_FILE",
        "FILE",
        "Its first line is the password, - is stdin; otherwise you are asked for it",
    ),
    ("--cafile", "MOLDAU_CAFILE", "FILE", "Trust these certificate authorities; implies --tls"),
    ("--certfile", "MOLDAU_CERTFILE", "FILE", "Client certificate, in PEM; implies --tls"),
    ("--keyfile", "MOLDAU_KEYFILE", "FILE", "Key of --certfile, unless that file has it"),
    ("--profile", "MOLDAU_PROFILE", "NAME", "Addresses and token of a login: moldau login"),
)
"""Name, environment variable, metavar and help of the options with text."""


def connection_options(function: _F, *, has_data_dir: bool = False) -> _F:
    """Add the options, unless the function has them; or `has_data_dir` for another purpose."""
    known = {param.name for param in getattr(function, "__click_params__", ())}
    if "profile" in known:
        return function
    others = _OTHERS[:-1] if has_data_dir else _OTHERS
    for decorate in reversed([*map(_text_option, _OPTIONS), *others]):
        function = decorate(function)
    return function


def complete_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of profiles, each with its address; empty if the file cannot be read."""
    from click.shell_completion import CompletionItem

    from moldau.cli.connection.profiles import load_profiles
    from moldau.model.errors import MoldauError

    try:
        known = load_profiles().profiles
    except MoldauError:
        return []
    return [
        CompletionItem(name, help=each.http)
        for name, each in known.items()
        if name.startswith(incomplete)
    ]


def _text_option(given: tuple[str, str, str, str]) -> Callable[[_F], _F]:
    name, variable, metavar, text = given
    return click.option(
        name,
        cls=ConnectionOption,
        envvar=variable,
        metavar=metavar,
        type=click.Path() if metavar == "FILE" else None,
        shell_complete=complete_profiles if name == "--profile" else None,
        help=f"{text}; also {variable}.",
    )


_OTHERS: Final = (
    click.option(
        "--tls/--no-tls",
        cls=ConnectionOption,
        envvar="MOLDAU_TLS",
        default=None,
        help="Encrypt connections; also MOLDAU_TLS.",
    ),
    click.option(
        "--mechanism",
        cls=ConnectionOption,
        type=click.Choice(MECHANISMS, case_sensitive=False),
        metavar="NAME",
        envvar="MOLDAU_MECHANISM",
        help="SASL mechanism for --user: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; "
        "also MOLDAU_MECHANISM.  [default: the best that the broker has]",
    ),
    click.option(
        "--data-dir",
        "admin_dir",
        cls=ConnectionOption,
        metavar="DIR",
        help="Administer the cluster of this data directory: use its admin.token.",
    ),
)
