"""What the listeners of a broker must have in common, and what each of them needs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from moldau.model.loopback import is_loopback
from moldau.model.topology import Endpoint
from moldau.server.config.identity_rules import identity_problems
from moldau.server.config.listeners import (
    SECTION_SETTINGS,
    SECTIONS,
    listeners_of,
    split_files,
)
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import (
    Authentication,
    ListenerConfig,
    ListenerProtocol,
    ListenerSecurity,
)

WILDCARDS = frozenset({"0.0.0.0", "::", "*"})
_CLEAR_TEXT = frozenset({"PLAIN", "OAUTHBEARER"})


class Violation(NamedTuple):
    """A broken rule; `key` is the setting to change."""

    key: str
    reason: str
    hint: str = ""


def violations(config: ServerConfig, is_set: Mapping[str, bool]) -> Iterator[Violation]:
    """`is_set` says for each key whether a file, a variable or a flag sets it."""
    listeners = listeners_of(config)
    yield from _together(config, listeners, is_set)
    for listener in listeners:
        yield from _alone(config, listener)
    for problem in identity_problems(config.security):
        yield Violation(*problem)


def _together(
    config: ServerConfig, listeners: tuple[ListenerConfig, ...], is_set: Mapping[str, bool]
) -> Iterator[Violation]:
    for name, times in Counter(listener.name for listener in listeners).items():
        if times > 1:
            yield Violation("listeners", f"has {times} listeners with the name {name}")
    for protocol, section in SECTIONS.items():
        named = [one for one in config.listeners if one.protocol is protocol]
        for setting, field in SECTION_SETTINGS[section].items() if named else ():
            # An empty variable takes back what a file sets; an empty address disables a listener.
            is_empty = getattr(getattr(config, section), setting) is None and setting != "addr"
            if is_set[f"{section}.{setting}"] and not is_empty:
                yield Violation(
                    f"{section}.{setting}",
                    f"cannot be set together with the listener {named[0].name} of {protocol}, "
                    "which would ignore it",
                    f"set {field} in {', '.join(one.setting for one in named)} instead",
                )
        if len(named) > 1 and protocol is not ListenerProtocol.KAFKA:
            yield Violation("listeners", f"has {len(named)} listeners of {protocol}; use one")
    taken: dict[Endpoint, ListenerConfig] = {}
    for listener in listeners:
        if listener.address.port == 0:
            continue
        other = taken.setdefault(listener.address, listener)
        if other is not listener:
            reason = f"is also the address of {other.setting}; use a different port for each"
            yield Violation(listener.setting, reason)


def _alone(config: ServerConfig, listener: ListenerConfig) -> Iterator[Violation]:
    key, address = listener.setting, listener.address
    if (
        address.host in WILDCARDS
        and listener.advertised is None
        and listener.protocol is ListenerProtocol.KAFKA
    ):
        section = key.rpartition(".")[0]
        name = f"{section}.advertised" if listener.name == "kafka" else "advertised"
        yield Violation(
            key,
            "binds all interfaces, but is not an address that clients can connect to",
            f"set the address for clients: {name} = HOST:{address.port}",
        )
    is_kafka = listener.protocol is ListenerProtocol.KAFKA
    if listener.sasl and not is_kafka:
        yield Violation(key, f"has sasl, which listeners of {listener.protocol} do not use")
    if listener.authentication is Authentication.USERS and listener.protocol not in (
        ListenerProtocol.GRPC,
        ListenerProtocol.HTTP,
    ):
        yield Violation(key, "has authentication, which is for grpc and http", "use sasl")
    yield from _certificates(config, listener)
    if not (is_loopback(address.host) or listener.authenticates or config.security.insecure):
        yield Violation(
            key,
            "can be reached from other machines, and serves everyone: refused",
            f"{_how_to_authenticate(listener)}; or serve everyone: --insecure "
            "(in containers MOLDAU_SECURITY__INSECURE=true)",
        )


def _how_to_authenticate(listener: ListenerConfig) -> str:
    protocol, is_named = listener.protocol, listener.setting.startswith("listeners.")
    if protocol is ListenerProtocol.KAFKA:
        setting = "sasl: [SCRAM-SHA-256]" if is_named else "kafka.sasl_mechanisms=SCRAM-SHA-256"
    else:
        setting = "authentication: users" if is_named else f"{protocol}.authentication=users"
    return f"authenticate clients: {setting}, or security mtls"


def _certificates(config: ServerConfig, listener: ListenerConfig) -> Iterator[Violation]:
    if not listener.uses_tls:
        return
    security, key = config.security, listener.setting
    for name in ("cert_file", "key_file"):
        if not (getattr(listener, name) or getattr(security, name)):
            yield Violation(
                key,
                f"uses TLS, but has no {name}",
                f"set security.{name}; certificates for a try: moldau certs dev",
            )
    if bool(listener.cert_file) != bool(listener.key_file):
        yield Violation(key, "must have both cert_file and key_file, or none of them")
    cert_files = split_files(listener.cert_file or security.cert_file or "")
    key_files = split_files(listener.key_file or security.key_file or "")
    if len(cert_files) != len(key_files):
        yield Violation(key, f"has {len(cert_files)} certificates, but {len(key_files)} keys")
    is_mtls = listener.security is ListenerSecurity.MTLS
    if is_mtls and not (listener.client_ca_file or security.client_ca_file):
        yield Violation(
            key,
            "asks for client certificates, but has no client_ca_file",
            "set security.client_ca_file: the certificates that sign those of clients",
        )
    is_peers = listener.protocol is ListenerProtocol.PEERS
    if is_peers and not is_mtls and not (listener.client_ca_file or security.client_ca_file):
        yield Violation(
            key,
            "uses TLS between brokers, but has no client_ca_file to check their certificates with",
            "set security.client_ca_file: the certificates that sign those of the brokers",
        )


def doubts(config: ServerConfig) -> Iterator[str]:
    """Settings that are allowed, and dangerous: for the log."""
    for listener in listeners_of(config):
        if is_loopback(listener.address.host):
            continue
        if not listener.authenticates:
            yield (
                f"{listener.setting} serves everyone who reaches {listener.address} "
                "(security.insecure)"
            )
        elif listener.uses_tls:
            continue
        elif listener.protocol is ListenerProtocol.PEERS:
            yield (
                f"{listener.setting} sends and receives all data of the cluster without "
                "encryption; use a private network, or mtls between brokers"
            )
        elif listener.authentication is Authentication.USERS or _CLEAR_TEXT & set(listener.sasl):
            yield (
                f"{listener.setting} receives passwords or tokens without encryption; "
                "use TLS, or a proxy that does"
            )
