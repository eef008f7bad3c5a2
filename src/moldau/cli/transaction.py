"""`moldau transaction`: list, describe and abort transactions."""

import time
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.connection.current import current_security
from moldau.cli.errors import ExitCode
from moldau.cli.options import Duration, Properties, brokers_option, output_option, yes_option
from moldau.cli.output import confirm, counted, emit_document, emit_rows, emit_table, say

if TYPE_CHECKING:
    from moldau.client.wire.transaction_admin import TransactionDetail

_OPEN = "Ongoing"


@click.group(
    "transaction",
    cls=LazyGroup,
    examples=(
        "moldau transaction list --open-for 1m",
        "moldau transaction describe billing-1",
        "moldau transaction abort billing-1",
    ),
)
def transaction() -> None:
    """List, describe and abort transactions."""


@transaction.command(
    "list",
    examples=(
        "moldau transaction list",
        "moldau transaction list --state Ongoing --open-for 5m",
        "moldau transaction list -o json -b broker.example:9092",
    ),
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only transactions in this state, as Ongoing; may be repeated.",
)
@click.option(
    "--open-for",
    "seconds",
    type=Duration(),
    default=0.0,
    metavar="DURATION",
    help="Only transactions open for at least this long, as 5m.",
)
@output_option
@brokers_option
def list_transactions(
    states: tuple[str, ...], seconds: float, output: str, brokers: str, properties: Properties
) -> int:
    """List transactional ids and their state.

    Exits with 1 if a broker does not respond: what it coordinates is missing.
    """
    from moldau.client.wire.transaction_admin import TransactionAdmin

    with TransactionAdmin(brokers, current_security(dict(properties))) as admin:
        rows = [
            {
                "id": info.transactional_id,
                "state": info.state,
                "producer": info.producer_id,
                "coordinator": info.coordinator,
            }
            for info in admin.transactions(states, seconds)
        ]
        failures = admin.failures
    hint = "no transactions; producers with a transactional.id create them"
    emit_rows(rows, output, name="id", if_empty=hint)
    for broker, error in failures.items():
        say(f"problem: transactions that broker {broker} coordinates are missing: {error}")
    return ExitCode.FAILED if failures else ExitCode.OK


@transaction.command(
    "describe",
    examples=(
        "moldau transaction describe billing-1",
        "moldau transaction describe billing-1 -o yaml",
        "moldau transaction describe billing-1 -o json | jq .partitions",
    ),
)
@click.argument("name", metavar="ID")
@output_option
@brokers_option
def describe(name: str, output: str, brokers: str, properties: Properties) -> None:
    """Show a transactional id: state, producer, and partitions of its transaction."""
    from moldau.client.wire.transaction_admin import TransactionAdmin

    with TransactionAdmin(brokers, current_security(dict(properties))) as admin:
        detail = admin.transaction(name)
    open_seconds = _open_seconds(detail)
    rows: list[dict[str, Any]] = [
        {"topic": topic, "partition": index} for topic, index in detail.partitions
    ]
    document = {
        "id": detail.transactional_id,
        "state": detail.state,
        "producer": detail.producer_id,
        "epoch": detail.producer_epoch,
        "coordinator": detail.coordinator,
        "timeout_seconds": detail.timeout_ms / 1000,
        "open_seconds": open_seconds,
        "partitions": rows,
    }
    if emit_document(document, output, name="id"):
        return
    since = "" if open_seconds is None else f", open for {open_seconds:.0f} s"
    click.echo(
        f"{detail.transactional_id}: {detail.state}{since}, producer {detail.producer_id} epoch "
        f"{detail.producer_epoch}, timeout {detail.timeout_ms / 1000:g} s, "
        f"coordinator {detail.coordinator}"
    )
    if rows:
        click.echo()
        emit_table(rows)


@transaction.command(
    "abort",
    examples=(
        "moldau transaction abort billing-1",
        "moldau transaction abort billing-1 -y",
        "moldau transaction abort billing-1 -y -b broker.example:9092",
    ),
)
@click.argument("name", metavar="ID")
@yes_option
@brokers_option
def abort(name: str, yes: bool, brokers: str, properties: Properties) -> None:
    """Abort the open transaction of an id and fence its producer."""
    from moldau.client.wire.transaction_admin import TransactionAdmin

    with TransactionAdmin(brokers, current_security(dict(properties))) as admin:
        detail = admin.transaction(name)
        if detail.state != _OPEN:
            say(f"{name} has no open transaction ({detail.state})")
            return
        what = counted(len(detail.partitions), "partition")
        confirm(f"Abort the transaction of {name} in {what}, and fence its producer?", yes=yes)
        admin.abort(name)
    say(f"aborted the transaction of {name}; its producer is fenced")


def _open_seconds(detail: "TransactionDetail") -> float | None:
    if detail.state != _OPEN or detail.started_ms < 0:
        return None
    return max(0.0, round(time.time() - detail.started_ms / 1000, 1))
