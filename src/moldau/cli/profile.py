"""`moldau profile`: keeps addresses and credentials under names, which all commands can use."""

import copy
from pathlib import Path
from typing import Any, Final

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.cluster.topology import http_option
from moldau.cli.connection.current import chosen_user, given_mechanism, tls_files
from moldau.cli.connection.options import complete_profiles
from moldau.cli.connection.passwords import password_for, read_password_file
from moldau.cli.connection.profiles import (
    PROFILE_DEFAULT,
    Profile,
    changed_profiles,
    find_profile,
    load_profiles,
    profiles_path,
)
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import output_option, plain_brokers_option
from moldau.cli.output import emit_document, emit_rows, emit_table, say
from moldau.cli.queue.connect import grpc_option

_ADDRESSES: Final = {"http": "--http", "brokers": "-b", "addresses": "--grpc"}
"""Parameters with addresses, and their options."""


@click.group(
    "profile",
    cls=LazyGroup,
    examples=(
        "moldau profile add prod -b b1.example:9092 --http b1.example:8080 --user alice",
        "moldau profile use prod                # the default of all commands from now on",
        "moldau topic list --profile staging    # or MOLDAU_PROFILE=staging",
    ),
)
def profile() -> None:
    """Keep addresses and credentials under names, in a file that only you can read."""


@profile.command(
    "add",
    examples=(
        "moldau profile add local -b :9192 --http :8180 --grpc :8100",
        "moldau profile add prod -b b1.example:9092,b2.example:9092 --user alice --cafile ca.pem",
        "moldau profile add ci -b b1.example:9092 --user ci --password-file /run/secrets/moldau",
    ),
)
@click.argument("name")
@click.option("--replace", is_flag=True, help="Replace a profile of this name.")
@click.option("--use", "is_used", is_flag=True, help="Make it the current profile.")
@http_option
@plain_brokers_option
@grpc_option
@click.pass_context
def add(
    ctx: click.Context,
    name: str,
    replace: bool,
    is_used: bool,
    http: str,
    brokers: str,
    addresses: str,
) -> None:
    """Add a profile: the addresses that are given, and how to log in.

    The password of --user is asked for, and kept in the profile; with --password-file the profile
    keeps only the name of that file. `moldau login` keeps a token instead.
    """
    given = {"http": http, "brokers": brokers, "addresses": addresses}
    for parameter in given:
        # Those of the current profile are not given.
        if ctx.get_parameter_source(parameter) is click.core.ParameterSource.DEFAULT:
            given[parameter] = ""
    ctx.params.update(given)
    if not any(given.values()):
        raise CommandError(
            "no address given",
            hint="name at least one: -b HOST:PORT, --http HOST:PORT, --grpc HOST:PORT",
            code=ExitCode.USAGE,
        )
    if name in load_profiles().profiles and not replace:
        raise CommandError(
            f"there is a profile {name} already",
            hint=f"see it: moldau profile show {name} · replace it: --replace",
        )
    user, password_file = chosen_user(ctx)
    password, kept_file = _password(user, password_file)
    found = Profile(
        http=given["http"],
        brokers=given["brokers"],
        grpc=given["addresses"],
        user=user,
        password=password,
        password_file=kept_file,
        mechanism=given_mechanism(ctx),
        **tls_files(ctx, Profile(), is_https=any("https://" in each for each in given.values())),
    )
    with changed_profiles() as file:
        file.profiles[name] = found
        if is_used:
            file.current = name
    say(f"added profile {name}" + ("; it is now the current one" if is_used else ""))
    for parameter, option in _ADDRESSES.items():
        if not given[parameter]:
            say(f"note: it has no address for commands with {option}; they use the default")
    if not is_used:
        say(f"use it: moldau profile use {name} · for one command: --profile {name}")


def _password(user: str, password_file: str | None) -> tuple[str, str]:
    """What a profile keeps: the password, or the file that contains it."""
    if not user:
        return "", ""
    if password_file and password_file != "-":
        # Read now: a wrong name is reported here, not by the next command.
        read_password_file(password_file)
        return "", str(Path(password_file).expanduser().absolute())
    return password_for(user, password_file), ""


@profile.command(
    "list",
    examples=(
        "moldau profile list",
        "moldau profile list -o name",
        "moldau profile list -o json | jq '.[] | select(.current)'",
    ),
)
@output_option
def list_profiles(output: str) -> None:
    """List profiles, without their secrets."""
    file = load_profiles()
    rows = [
        {
            "name": name,
            "current": name == file.current,
            "user": each.user,
            "http": each.http,
            "brokers": each.brokers,
            "login": each.login_state,
        }
        for name, each in sorted(file.profiles.items())
    ]
    hint = f"no profiles in {profiles_path()}; add one: moldau profile add NAME, or moldau login"
    emit_rows(rows, output, name="name", if_empty=hint)


@profile.command(
    "show",
    examples=(
        "moldau profile show",
        "moldau profile show prod",
        "moldau profile show prod -o json | jq -r .brokers",
    ),
)
@click.argument("name", required=False, shell_complete=complete_profiles)
@output_option
def show(name: str | None, output: str) -> None:
    """Show one profile, by default the current one, without its secrets."""
    found = find_profile(name or "")
    if found is None:
        raise CommandError(
            "no profile is used now",
            hint="name one: moldau profile show NAME · list them: moldau profile list",
            code=ExitCode.NOT_FOUND,
        )
    document = _shown(*found)
    if not emit_document(document, output, name="name"):
        emit_table([{"setting": key, "value": value} for key, value in document.items()])


def _shown(name: str, found: Profile) -> dict[str, Any]:
    return {
        "name": name,
        "current": name == load_profiles().current,
        "http": found.http,
        "brokers": found.brokers,
        "grpc": found.grpc,
        "user": found.user,
        "login": found.login_state,
        "mechanism": found.mechanism,
        "tls": found.tls,
        "cafile": found.cafile,
        "certfile": found.certfile,
        "keyfile": found.keyfile,
        "file": str(profiles_path()),
    }


@profile.command(
    "use",
    examples=(
        "moldau profile use prod",
        f"moldau profile use {PROFILE_DEFAULT}",
        "moldau profile use --none             # commands use no profile any more",
    ),
)
@click.argument("name", required=False, shell_complete=complete_profiles)
@click.option("--none", is_flag=True, help="Use no profile.")
def use(name: str | None, none: bool) -> None:
    """Make a profile the current one."""
    if none == (name is not None):
        raise CommandError("name a profile, or pass --none", code=ExitCode.USAGE)
    if name:
        find_profile(name)
    with changed_profiles() as file:
        file.current = name or ""
    say(f"profile {name} is now the current one" if name else "no profile is used now")


@profile.command(
    "remove",
    examples=(
        "moldau profile remove prod",
        "moldau profile remove prod staging",
        f"moldau profile remove {PROFILE_DEFAULT}",
    ),
)
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_profiles
)
def remove(names: tuple[str, ...]) -> None:
    """Remove profiles, with their secrets."""
    for name in names:
        find_profile(name)
    with changed_profiles() as file:
        for name in names:
            file.profiles.pop(name, None)
        if file.current in names:
            file.current = ""
    say(f"removed {', '.join(names)}")


def _hidden(shown: click.Command) -> click.Command:
    found = copy.copy(shown)
    found.hidden = True
    return found


profile.add_command(_hidden(remove), "delete")
"""Its earlier name."""
