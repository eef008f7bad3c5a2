"""`moldau certs`: certificates for TLS on this machine and in tests."""

import re
import socket
from pathlib import Path

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.output import say

_LOCAL = ("localhost", "127.0.0.1", "::1")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9.:_-]{0,252})")


@click.group(
    "certs",
    cls=LazyGroup,
    examples=(
        "moldau certs dev",
        "moldau certs dev --host broker1.example --client alice",
        "moldau certs dev /etc/moldau/certs --days 90",
    ),
)
def certs() -> None:
    """Make certificates for TLS."""


@certs.command(
    "dev",
    examples=(
        "moldau certs dev",
        "moldau certs dev --host broker1.example --host 10.0.0.5",
        "moldau certs dev ./certs --client alice --client bob --days 30",
    ),
)
@click.argument("directory", default="certs", type=click.Path(file_okay=False, path_type=Path))
@click.option("--broker", default="broker", metavar="NAME", show_default=True,
              help="Name of the broker's certificate.")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="HOST",
              help="A name or address of the broker besides localhost and the name of this "
                   "machine; may be repeated.")  # fmt: skip
@click.option("--client", "clients", multiple=True, default=("client",), metavar="NAME",
              help="Name of a client's certificate; may be repeated.  [default: client]",
              )  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True,
              help="How long the certificates are valid.")  # fmt: skip
def dev(
    directory: Path, broker: str, hosts: tuple[str, ...], clients: tuple[str, ...], days: int
) -> None:
    """Make a local CA, and certificates for a broker and for clients.

    Files that exist are kept, never overwritten; the CA in the directory signs new ones. These are
    for development: everyone with ca.key can make certificates that your brokers accept.
    """
    # Imported here: no other command needs it, and it takes time.
    from moldau.cli.certificate_maker import CertificateFolder

    names = [broker, *clients]
    for name in names:
        if not _FILE_NAME.fullmatch(name) or name == "ca":
            raise _usage(f"{name!r} is not a valid name: letters, digits, dots, - and _")
    if len(set(names)) != len(names):
        raise _usage("each name can be used one time only")
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise _usage(f"{host!r} is not a host name or an address")
    folder = CertificateFolder(directory)
    try:
        signer = folder.authority()
        all_hosts = list(dict.fromkeys([*_LOCAL, socket.gethostname(), *hosts]))
        folder.broker(broker, signer, all_hosts, days)
        for client in clients:
            folder.client(client, signer, days)
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from None
    for name in folder.made:
        say(f"made {directory / name}.pem and {name}.key")
    for name in folder.kept:
        say(f"kept {directory / name}.pem and {name}.key, which exist")
    if folder.made:
        click.echo(_next_steps(directory, broker, clients[0]))


def _usage(text: str) -> CommandError:
    return CommandError(text, code=ExitCode.USAGE)


def _next_steps(directory: Path, broker: str, client: str) -> str:
    return (
        "Start a broker with TLS:\n"
        "  moldau broker start --bootstrap --set kafka.security=tls \\\n"
        f"    --set security.cert_file={directory / broker}.pem "
        f"--set security.key_file={directory / broker}.key\n"
        "Or with certificates of clients, too:\n"
        "  … --set kafka.security=mtls "
        f"--set security.client_ca_file={directory / 'ca.pem'}\n"
        "Any Kafka client:\n"
        f"  security.protocol=SSL ssl.ca.location={directory / 'ca.pem'}\n"
        f"  with mtls also ssl.certificate.location={directory / client}.pem "
        f"ssl.key.location={directory / client}.key"
    )
