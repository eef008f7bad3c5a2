"""Owns `moldau proxy`: the queue API for clients that know no brokers."""

import asyncio
import logging
import os
import signal

import click

from moldau.cli.click_groups import command
from moldau.cli.options import Duration
from moldau.cli.output import counted
from moldau.cli.queue.connect import GrpcAddresses

_LISTEN_DEFAULT = "127.0.0.1:9000"


@command(
    "proxy",
    examples=(
        "moldau proxy                                           # for a broker on this machine",
        "moldau proxy --listen :9000 --brokers b1:8000,b2:8000  # for clients on other machines",
        "moldau proxy --brokers http://b1:8080                  # learn addresses over HTTP",
    ),
)
@click.option(
    "-l",
    "--listen",
    default=_LISTEN_DEFAULT,
    show_default=True,
    metavar="[HOST]:PORT",
    help="Where clients connect; without a host, from any machine.",
)
@click.option(
    "-b",
    "--brokers",
    type=GrpcAddresses(),
    envvar="MOLDAU_GRPC",
    default="localhost:8000",
    show_default=True,
    metavar="HOST:PORT[,…]",
    help="gRPC addresses of some brokers, or http://HOST:PORT of their HTTP; also MOLDAU_GRPC.",
)
@click.option(
    "--timeout",
    "seconds_max",
    type=Duration(),
    default="15s",
    show_default=True,
    metavar="DURATION",
    help="How long a call may look for a broker that answers.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log what happens to brokers and streams.")
def proxy(listen: str, brokers: str, seconds_max: float, verbose: bool) -> None:
    """Serve the queue API (gRPC) for clients in any language, with the routing hidden.

    Clients talk to the proxy as to a single broker: it finds the leaders of partitions, spreads
    polls over them, brings acks back to where they belong, and goes on when brokers come and go.
    """
    # gRPC's core would write a line for every connection that ends; what matters is told by us.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    asyncio.run(_serve(_listen_address(listen), brokers, seconds_max))


async def _serve(listen: str, brokers: str, seconds_max: float) -> None:
    from moldau.client.queue.client import seeds_of
    from moldau.proxy.server import Proxy

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    server = Proxy(listen, seeds_of(brokers), seconds_max=seconds_max)
    await server.start()
    host = listen.rpartition(":")[0]
    shown = f"{'*' if host in ('[::]', '0.0.0.0') else host}:{server.port}"
    alive = server.brokers
    behind = f"{counted(len(alive), 'broker')}: {', '.join(alive)}"
    # To stdout, as brokers do: whoever starts it waits for this line.
    click.echo(
        f"proxy ready at {shown}, for {behind if alive else f'nobody yet: {brokers} is silent'}"
    )
    try:
        await stopping.wait()
    finally:
        await server.stop()


def _listen_address(listen: str) -> str:
    """[HOST]:PORT as gRPC wants it."""
    host, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise click.BadParameter(
            f"{listen!r} is no address; write HOST:PORT or :PORT", param_hint="--listen"
        )
    return f"{host or '[::]'}:{port}"
