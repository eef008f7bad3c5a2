"""`moldau ui`: opens the web console of a cluster."""

import click

from moldau.cli.click_groups import command
from moldau.cli.cluster.topology import http_option
from moldau.cli.connection.current import tls_security
from moldau.cli.errors import CommandError
from moldau.cli.output import say


@command(
    "ui",
    examples=(
        "moldau ui",
        "moldau ui --http host1.example:8080,host2.example:8080",
        "moldau ui --profile prod --print",
    ),
)
@click.option("--print", "prints", is_flag=True, help="Print the address, and open nothing.")
@http_option
@click.pass_context
def ui(ctx: click.Context, prints: bool, http: str) -> None:
    """Open the web console in a browser, at the first address where a broker responds.

    The console itself asks for user and password where the brokers do.
    """
    from moldau.client.cluster_client import ClusterClient

    address = ClusterClient(http.split(","), security=tls_security(ctx)).console()
    if prints:
        click.echo(address)
        return
    say(f"opening {address}")
    # Here, since it looks for browsers when it is imported.
    import webbrowser

    if not webbrowser.open(address):
        raise CommandError(
            "no browser could be started on this machine", hint=f"open it yourself: {address}"
        )
