"""`moldau cluster token`: tokens that brokers join with."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.cluster.topology import connect, http_option
from moldau.cli.options import Duration, output_option
from moldau.cli.output import emit_rows, say

if TYPE_CHECKING:
    from moldau.model.topology import JoinTokenShown


@click.group(
    "token",
    cls=LazyGroup,
    examples=(
        "moldau cluster token create > join.token",
        "moldau cluster token list",
        "moldau cluster token delete Xk3v_9aQ41tZ",
    ),
)
def token() -> None:
    """Create, list and delete tokens that brokers join with."""


@token.command(
    "create",
    examples=(
        "moldau cluster token create > join.token",
        "moldau cluster token create --expires 10m > join.token",
        "moldau cluster token create --http host1.example:8080 > join.token",
    ),
)
@click.option(
    "--expires", type=Duration(), default="1h", show_default=True, help="It is valid for this long."
)
@http_option
def create(expires: float, http: str) -> None:
    """Create a token. One broker can join with it: --set join_token_file=FILE."""
    client, _ = connect(http)
    created = client.create_join_token(int(expires * 1000))
    click.echo(created.token)
    say(
        f"one broker can join with it until {_time(created.expires_ms)}; it is shown only now\n"
        "pass it on in a file that only the broker can read: "
        "moldau broker start --join-addr … --set join_token_file=FILE"
    )


@token.command(
    "list",
    examples=(
        "moldau cluster token list",
        "moldau cluster token list -o json",
        "moldau cluster token list --http host1.example:8080",
    ),
)
@output_option
@http_option
def list_tokens(output: str, http: str) -> None:
    """List tokens, used and expired ones too. Their secrets are stored nowhere."""
    client, _ = connect(http)
    now_ms = time.time() * 1000
    rows = [
        {"id": one.id, "state": _state(one, now_ms), "expires": _time(one.expires_ms)}
        for one in client.join_tokens().tokens
    ]
    emit_rows(
        rows, output, name="id", if_empty="no tokens; create one: moldau cluster token create"
    )


@token.command(
    "delete",
    examples=(
        "moldau cluster token delete Xk3v_9aQ41tZ",
        "moldau cluster token delete Xk3v_9aQ41tZ --http host1.example:8080",
        "moldau cluster token list -o name",
    ),
)
@click.argument("token_id", metavar="ID")
@http_option
def delete(token_id: str, http: str) -> None:
    """Delete a token. A broker that has joined with it stays."""
    client, _ = connect(http)
    client.delete_join_token(token_id)
    say(f"deleted token {token_id}")


def _state(shown: "JoinTokenShown", now_ms: float) -> str:
    if shown.used:
        return "used"
    return "expired" if shown.expires_ms <= now_ms else "valid"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
