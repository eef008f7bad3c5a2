"""`moldau login` and `logout`: tokens, which are kept in profiles."""

import time
from typing import TYPE_CHECKING

import click

from moldau.cli.click_groups import command
from moldau.cli.cluster.topology import http_option
from moldau.cli.connection.current import (
    check_profile_takes_tokens,
    chosen_user,
    current_profile,
    login_security,
    tls_files,
)
from moldau.cli.connection.options import complete_profiles
from moldau.cli.connection.passwords import can_prompt, password_for
from moldau.cli.connection.profiles import Profile, changed_profiles, find_profile
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import plain_brokers_option
from moldau.cli.output import say, with_options
from moldau.cli.queue.connect import grpc_option
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient, LoginReply


@command(
    "login",
    examples=(
        "moldau login --user alice",
        "moldau login --user alice --http https://b1.example:8080 --cafile ca.pem --profile prod",
        "moldau login --user ci --password-file /run/secrets/moldau",
    ),
)
@http_option
@plain_brokers_option
@grpc_option
@click.pass_context
def login(ctx: click.Context, http: str, brokers: str, addresses: str) -> None:
    """Log in over HTTP, and keep the token and the addresses in a profile.

    The profile becomes the current one: other commands use it by default. Addresses that are not
    given are those that the cluster advertises.
    """
    name, old = current_profile(ctx)
    user, password_file = chosen_user(ctx)
    user = user or old.user
    if not user:
        if not can_prompt():
            raise CommandError("no user given", hint="pass --user NAME", code=ExitCode.USAGE)
        user = str(click.prompt("User", err=True))
    password = password_for(user, password_file)
    client = _client(ctx, http, None)
    reply = client.login(user, password)
    kafka, grpc = _advertised(ctx, http, reply, brokers, addresses)
    found = Profile(
        http=http,
        brokers=kafka,
        grpc=grpc,
        user=user,
        token=reply.token,
        expires_at_ms=reply.expires_at_ms,
        **tls_files(ctx, old, is_https="https://" in http),
    )
    with changed_profiles() as file:
        file.profiles[name] = found
        file.current = name
    say(f"logged in as {user}; profile {name} is now the current one{_until(found)}")
    try:
        check_profile_takes_tokens(ctx, found)
    except CommandError as error:
        say(f"warning: Kafka commands cannot use this profile: {error}")
        say(f"hint:    {with_options(error.hint)}")


def _client(ctx: click.Context, http: str, reply: "LoginReply | None") -> "ClusterClient":
    from dataclasses import replace

    from moldau.client.cluster_client import ClusterClient
    from moldau.client.sasl import OAUTHBEARER, Sasl

    sasl = None if reply is None else Sasl(mechanism=OAUTHBEARER, password=reply.token)
    security = replace(login_security(ctx), sasl=sasl)
    return ClusterClient(http.split(","), security=security)


def _advertised(
    ctx: click.Context, http: str, reply: "LoginReply", brokers: str, addresses: str
) -> tuple[str, str]:
    """Addresses for Kafka and gRPC: those given, else those of the cluster's brokers."""
    default = click.core.ParameterSource.DEFAULT
    is_open = [ctx.get_parameter_source(name) is default for name in ("brokers", "addresses")]
    if not any(is_open):
        return brokers, addresses
    try:
        found = [each for each in _client(ctx, http, reply).topology().brokers if each.alive]
    except MoldauError:
        # This user may not see the cluster; the defaults remain.
        return brokers, addresses
    kafka = ",".join(str(each.kafka) for each in found)
    grpc = ",".join(str(each.grpc) for each in found if each.grpc)
    return (kafka if is_open[0] else brokers), (grpc if is_open[1] else addresses)


def _until(profile: Profile) -> str:
    if not profile.expires_at_ms:
        return ""
    minutes = max(0, round((profile.expires_at_ms / 1000 - time.time()) / 60))
    return f", for {minutes} minutes"


@command(
    "logout",
    examples=(
        "moldau logout",
        "moldau logout --profile prod",
        "MOLDAU_PROFILE=prod moldau logout",
    ),
)
@click.option(
    "--profile",
    "name",
    envvar="MOLDAU_PROFILE",
    default="",
    metavar="NAME",
    shell_complete=complete_profiles,
    help="The profile; also MOLDAU_PROFILE.  [default: the current one]",
)
def logout(name: str) -> None:
    """Delete the token of a profile from this machine. The token itself ends when it expires."""
    import msgspec

    found = find_profile(name)
    if found is None:
        say("not logged in")
        return
    with changed_profiles() as file:
        file.profiles[found[0]] = msgspec.structs.replace(found[1], token="", expires_at_ms=0)
        if file.current == found[0]:
            file.current = ""
    say(f"deleted the token of profile {found[0]}")
