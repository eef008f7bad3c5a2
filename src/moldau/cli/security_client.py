"""What the commands for users, ACLs, roles and quotas share."""

from typing import TYPE_CHECKING, Any

import click

from moldau.cli.connection.current import current_security, security_in
from moldau.cli.options import DEFAULT_BROKERS, completions
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.wire.security_admin import SecurityAdmin


def security_admin(brokers: str) -> "SecurityAdmin":
    """A client with the connection of the command that runs."""
    from moldau.client.wire.security_admin import SecurityAdmin

    return SecurityAdmin(brokers, current_security())


def user_names(ctx: click.Context) -> list[str]:
    """For completion; empty if no broker responds, or the user may not list them."""
    from moldau.client.wire.security_admin import SecurityAdmin

    brokers = str(ctx.params.get("brokers") or DEFAULT_BROKERS)
    try:
        with SecurityAdmin(brokers, security_in(ctx, ask=False), seconds_max=1.0) as admin:
            return [user.name for user in admin.users()]
    except MoldauError:
        return []


def complete_users(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    return completions(incomplete, dict.fromkeys(user_names(ctx), ""))


def complete_principals(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    names = ["User:*", *(f"User:{name}" for name in user_names(ctx))]
    return completions(incomplete, dict.fromkeys(names, ""))
