"""`moldau quota`: limits of users and client ids."""

import re
from typing import Any, Final, NamedTuple

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Number, ParamType, output_option, plain_brokers_option, yes_option
from moldau.cli.output import confirm, emit_rows, say
from moldau.cli.security_client import complete_principals, security_admin

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[kKMG]i?B)?")
_UNITS: Final = {"k": 1000, "m": 1000**2, "g": 1000**3}
_LIMITS: Final = {
    "produce": "producer_byte_rate",
    "fetch": "consumer_byte_rate",
    "request": "request_percentage",
    "mutations": "controller_mutation_rate",
}
"""The options, and Kafka's names."""


class QuotaEntity(NamedTuple):
    """Whom a quota is for. None: not part of it; empty: the default."""

    user: str | None
    client_id: str | None

    def __str__(self) -> str:
        parts = (("User", self.user), ("Client", self.client_id))
        return "/".join(f"{kind}:{name or '*'}" for kind, name in parts if name is not None)


class EntityParam(ParamType[QuotaEntity]):
    """User:alice, Client:app, or User:alice/Client:app; * is the default for all others."""

    name = "entity"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> QuotaEntity:
        if isinstance(value, QuotaEntity):
            return value
        match = re.fullmatch(r"(?:User:(?P<user>[^/]+))?/?(?:Client:(?P<client>.+))?", str(value))
        if match is None or (match["user"] is None and match["client"] is None):
            self.fail(
                f"{value!r} is not an entity; write User:NAME, Client:ID or User:NAME/Client:ID, "
                "with * for the default",
                param,
                ctx,
            )
        names = ("" if name == "*" else name for name in (match["user"], match["client"]))
        return QuotaEntity(*names)


class RateParam(ParamType[float]):
    """Bytes per second: 1000000, 10MB, 512KiB."""

    name = "bytes/s"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _RATE.fullmatch(str(value).strip().removesuffix("/s"))
        if match is None or float(match[1]) <= 0:
            self.fail(f"{value!r} is not a rate; write 500kB, 10MB or 1GiB", param, ctx)
        unit = (match[2] or "B").lower()
        factor = _UNITS.get(unit[0], 1)
        if "i" in unit:
            factor = {1000: 1024, 1000**2: 1024**2, 1000**3: 1024**3}[factor]
        return float(match[1]) * factor


@click.group(
    "quota",
    cls=LazyGroup,
    examples=(
        "moldau quota set User:alice --produce 10MB --fetch 20MB",
        "moldau quota list",
        "moldau quota delete User:alice",
    ),
)
def quota() -> None:
    """Limit what users and client ids may send and read, per broker.

    A limit holds at once. Kafka clients over it are slowed down, others are refused for a time.
    """


@quota.command(
    "set",
    examples=(
        "moldau quota set User:alice --produce 10MB --fetch 20MB",
        "moldau quota set 'User:*' --request 50               # the default of all users",
        "moldau quota set User:alice/Client:loader --produce 1MB",
    ),
)
@click.argument("entity", type=EntityParam(), shell_complete=complete_principals)
@click.option("--produce", type=RateParam(), help="Bytes per second that it may send.")
@click.option("--fetch", type=RateParam(), help="Bytes per second that it may read.")
@click.option("--request", type=Number(0.001), help="Time of requests, in percent of one core.")
@click.option(
    "--mutations", type=Number(0.001), help="Partitions per second that it may create or delete."
)
@plain_brokers_option
def set_quota(entity: QuotaEntity, brokers: str, **given: float | None) -> None:
    """Set limits of a user, a client id, or both; other limits stay."""
    limits = {_LIMITS[name]: value for name, value in given.items() if value is not None}
    if not limits:
        raise CommandError(
            "no limit given",
            hint="pass --produce, --fetch, --request or --mutations",
            code=ExitCode.USAGE,
        )
    with security_admin(brokers) as admin:
        admin.alter_quotas(entity.user, entity.client_id, limits)
    shown = ", ".join(f"{name} {_number(value)}" for name, value in limits.items())
    say(f"set {shown} of {entity}")


def _number(value: float | None) -> float | int | None:
    """Rates are whole numbers, mostly."""
    return int(value) if value is not None and value.is_integer() else value


@quota.command(
    "list",
    examples=(
        "moldau quota list",
        "moldau quota list -o json",
        "moldau quota list -b broker.example:9092",
    ),
)
@output_option
@plain_brokers_option
def list_quotas(output: str, brokers: str) -> None:
    """List all quotas."""
    with security_admin(brokers) as admin:
        rows = [
            {
                "entity": str(QuotaEntity(info.user, info.client_id)),
                **{name: _number(info.limits.get(name)) for name in _LIMITS.values()},
            }
            for info in admin.quotas()
        ]
    emit_rows(rows, output, name="entity", if_empty="no quotas; set one: moldau quota set --help")


@quota.command(
    "delete",
    examples=(
        "moldau quota delete User:alice",
        "moldau quota delete 'User:*' -y",
        "moldau quota delete Client:loader -y -b broker.example:9092",
    ),
)
@click.argument("entity", type=EntityParam(), shell_complete=complete_principals)
@yes_option
@plain_brokers_option
def delete(entity: QuotaEntity, yes: bool, brokers: str) -> None:
    """Remove all limits of a user, a client id, or both."""
    with security_admin(brokers) as admin:
        found = [info for info in admin.quotas() if (info.user, info.client_id) == tuple(entity)]
        if not found:
            raise CommandError(
                f"there is no quota of {entity}",
                hint="list them: moldau quota list",
                code=ExitCode.NOT_FOUND,
            )
        confirm(f"Remove all limits of {entity}?", yes=yes)
        admin.alter_quotas(entity.user, entity.client_id, dict.fromkeys(found[0].limits))
    say(f"removed the quota of {entity}")
