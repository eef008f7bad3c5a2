"""`moldau user`: users who log in with a password."""

import secrets
from typing import TYPE_CHECKING

import click

from moldau.cli.acl_rules import UserParam
from moldau.cli.click_groups import LazyGroup
from moldau.cli.connection.passwords import new_password
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Integer,
    document_output_option,
    output_option,
    plain_brokers_option,
    yes_option,
)
from moldau.cli.output import confirm, counted, emit_document, emit_rows, existing_names, say
from moldau.cli.security_client import complete_users, security_admin

if TYPE_CHECKING:
    from moldau.client.wire.security_admin import SecurityAdmin, UserInfo

_GENERATED_BYTES = 18
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


@click.group(
    "user",
    cls=LazyGroup,
    examples=(
        "moldau user add alice --data-dir .moldau     # the first user of a broker",
        "moldau user list",
        "moldau user passwd alice",
    ),
)
def user() -> None:
    """Add, list and delete users who log in with a password."""


_PASSWORD_OPTIONS = (
    click.option(
        "--new-password-file",
        metavar="FILE",
        help="Its first line is the new password, - is stdin; otherwise you are asked for it.",
    ),
    click.option("--generate", is_flag=True, help="Generate a password, and print it once."),
    click.option(
        "--iterations",
        type=Integer(4096, 1_000_000),
        default=8192,
        show_default=True,
        help="How much work it is to try one password.",
    ),
    document_output_option,
    plain_brokers_option,
)


def _password_options(function: "click.decorators.FC") -> "click.decorators.FC":
    for option in reversed(_PASSWORD_OPTIONS):
        function = option(function)
    return function


@user.command(
    "add",
    examples=(
        "moldau user add alice",
        "moldau user add alice --data-dir .moldau     # the first user of a broker",
        "moldau user add billing --generate -o json",
    ),
)
@click.argument("name", metavar="USER", type=UserParam())
@_password_options
def add(
    name: str,
    new_password_file: str | None,
    generate: bool,
    iterations: int,
    output: str,
    brokers: str,
) -> None:
    """Add a user, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512. Rights are granted by ACLs."""
    with security_admin(brokers) as admin:
        if name in _users(admin):
            raise CommandError(
                f"user {name} exists", hint=f"change the password: moldau user passwd {name}"
            )
        _set(admin, name, new_password_file, generate, iterations, output)
    say(f"added user {name}; grant rights: moldau acl add --help · moldau role grant --help")


@user.command(
    "passwd",
    examples=(
        "moldau user passwd alice",
        "moldau user passwd alice --new-password-file new.txt",
        "moldau user passwd billing --generate -o json",
    ),
)
@click.argument("name", metavar="USER", type=UserParam(), shell_complete=complete_users)
@_password_options
def passwd(
    name: str,
    new_password_file: str | None,
    generate: bool,
    iterations: int,
    output: str,
    brokers: str,
) -> None:
    """Change the password of a user. Connections that are logged in stay."""
    with security_admin(brokers) as admin:
        existing_names("user", [name], _users(admin), if_exists=False)
        _set(admin, name, new_password_file, generate, iterations, output)
    say(f"changed the password of {name}")


def _set(
    admin: "SecurityAdmin",
    name: str,
    password_file: str | None,
    generate: bool,
    iterations: int,
    output: str,
) -> None:
    if generate and password_file:
        raise CommandError(
            "--generate and --new-password-file exclude each other", code=ExitCode.USAGE
        )
    password = (
        secrets.token_urlsafe(_GENERATED_BYTES) if generate else new_password(name, password_file)
    )
    admin.set_password(name, password, iterations=iterations)
    document = {"user": name, **({"password": password} if generate else {})}
    if not emit_document(document, output, name="user") and generate:
        click.echo(password)


@user.command(
    "list",
    examples=(
        "moldau user list",
        "moldau user list -o name",
        "moldau user list -o json -b broker.example:9092",
    ),
)
@output_option
@plain_brokers_option
def list_users(output: str, brokers: str) -> None:
    """List users, and how their passwords are stored."""
    with security_admin(brokers) as admin:
        rows = [
            {
                "user": info.name,
                "mechanisms": [_MECHANISMS.get(each, str(each)) for each in info.credentials],
                "iterations": min(info.credentials.values(), default=0),
            }
            for info in admin.users()
        ]
    emit_rows(rows, output, name="user", if_empty="no users; add one: moldau user add NAME")


@user.command(
    "delete",
    examples=(
        "moldau user delete alice",
        "moldau user delete alice bob -y",
        "moldau user delete alice --if-exists -y",
    ),
)
@click.argument(
    "names",
    metavar="USER...",
    type=UserParam(),
    nargs=-1,
    required=True,
    shell_complete=complete_users,
)
@click.option("--if-exists", is_flag=True, help="Ignore users that do not exist.")
@yes_option
@plain_brokers_option
def delete(names: tuple[str, ...], if_exists: bool, yes: bool, brokers: str) -> None:
    """Delete users. Their ACLs stay."""
    with security_admin(brokers) as admin:
        known = _users(admin)
        found = existing_names("user", dict.fromkeys(names), known, if_exists=if_exists)
        if not found:
            return
        confirm(f"Delete {counted(len(found), 'user')}: {', '.join(found)}?", yes=yes)
        for name in found:
            admin.delete_user(known[name])
            say(f"deleted user {name}; its ACLs stay: moldau acl list User:{name}")


def _users(admin: "SecurityAdmin") -> "dict[str, UserInfo]":
    return {info.name: info for info in admin.users()}
