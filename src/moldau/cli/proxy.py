"""`moldau proxy`: serves the queue API and routes calls to the brokers."""

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

import click

from moldau.cli.click_groups import command
from moldau.cli.connection.current import current_security
from moldau.cli.options import address_option, timeout_option
from moldau.cli.output import counted
from moldau.cli.queue.connect import GRPC_DEFAULT, GrpcAddresses

if TYPE_CHECKING:
    from moldau.client.security import Security

_LISTEN_DEFAULT = "127.0.0.1:9000"


@command(
    "proxy",
    examples=(
        "moldau proxy                                                   # for a local broker",
        "moldau proxy --insecure --listen 0.0.0.0:9000 --brokers b1:8000,b2:8000   # for others",
        "moldau proxy --brokers http://b1:8080                          # discover over HTTP",
    ),
)
@click.option(
    "-l",
    "--listen",
    default=_LISTEN_DEFAULT,
    show_default=True,
    metavar="[HOST]:PORT",
    help="Address for clients; :PORT is localhost, 0.0.0.0:PORT all interfaces.",
)
@address_option(
    "-b",
    "--brokers",
    kind=GrpcAddresses(),
    variable="MOLDAU_GRPC",
    default=GRPC_DEFAULT,
    help_text="gRPC addresses of some brokers, or http://HOST:PORT of their HTTP API",
)
@timeout_option("15s", "Deadline of a call while no broker responds.")
@click.option(
    "--insecure", is_flag=True, help="Listen for other machines, in plain text and for everyone."
)
@click.option(
    "--lend-certificate",
    is_flag=True,
    help="Calls without credentials get the rights of the certificate of the proxy.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log changes of brokers and streams.")
def proxy(
    listen: str,
    brokers: str,
    timeout: float,
    insecure: bool,
    lend_certificate: bool,
    verbose: bool,
) -> None:
    """Serve the queue API (gRPC) for clients that cannot route calls to partition leaders.

    Clients use the proxy like a single broker. It finds the leaders of partitions, spreads polls
    over them, routes acks to the right broker, and follows brokers that join and leave.

    Calls carry the credentials of the clients. --user is only used to find brokers; TLS is for the
    connections to them. With --certfile, calls without credentials are refused, unless
    --lend-certificate.
    """
    address = _listen_address(listen, insecure=insecure)
    # gRPC's core would log a line for every closed connection; we log what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    security = current_security()
    asyncio.run(_serve(address, brokers, timeout, security, lends_certificate=lend_certificate))


async def _serve(
    listen: str,
    brokers: str,
    seconds_max: float,
    security: "Security",
    *,
    lends_certificate: bool,
) -> None:
    from moldau.client.queue.client import seeds_of
    from moldau.proxy.server import Proxy

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    server = Proxy(
        listen,
        seeds_of(brokers),
        seconds_max=seconds_max,
        security=security,
        lends_certificate=lends_certificate,
    )
    await server.start()
    host = listen.rpartition(":")[0]
    address = f"{'*' if host in ('[::]', '0.0.0.0') else host}:{server.port}"
    alive = server.brokers
    reached = f"{counted(len(alive), 'broker')} reachable: {', '.join(alive)}"
    # To stdout, as brokers do: scripts wait for this line.
    click.echo(
        f"proxy listening on {address}; "
        + (reached if alive else f"no broker reachable yet ({server.trouble or brokers}), retrying")
    )
    try:
        await stopping.wait()
    finally:
        await server.stop()


def _listen_address(listen: str, *, insecure: bool) -> str:
    """[HOST]:PORT as HOST:PORT."""
    from moldau.model.loopback import is_loopback

    host, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise click.BadParameter(
            f"{listen!r} is not a valid address; write HOST:PORT or :PORT", param_hint="--listen"
        )
    host = host or "127.0.0.1"
    if not (insecure or is_loopback(host)):
        raise click.BadParameter(
            f"{listen!r} can be reached from other machines, in plain text: refused; "
            "listen on this machine (:PORT), or add --insecure",
            param_hint="--listen",
        )
    return f"{host}:{port}"
