"""Derives Kafka's broker configs, warnings and service settings from the configuration."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from moldau.data.maintenance import MaintenanceConfig
from moldau.metadata.config_types import ConfigType
from moldau.metadata.replica_rules import DEFAULT_REPLICATION_MAX
from moldau.metadata.topic_configs import ConfigEntry, fixed_entry
from moldau.model.errors import ConfigError
from moldau.model.ids import BrokerId
from moldau.server.config.keys import KEYS, Key
from moldau.server.config.listeners import listeners_for
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol
from moldau.server.config.values import describe

_RACK_CHARS_MAX: Final = 256


def with_rack(config: ServerConfig) -> ServerConfig:
    """With the rack of `rack_file`, unless it is set or the file is empty. Raises ConfigError."""
    if config.rack is not None or config.rack_file is None:
        return config
    try:
        with open(config.rack_file, encoding="utf-8", errors="replace") as file:
            rack = file.readline(_RACK_CHARS_MAX).strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read {config.rack_file} (rack_file): {error.strerror or error}"
        ) from None
    return replace(config, rack=rack) if rack else config


def with_machine(config: ServerConfig, name: str) -> ServerConfig:
    """On the machine of this name, unless it is set."""
    return config if config.machine else replace(config, machine=name or None)


def runtime_defaults(config: ServerConfig) -> dict[str, str]:
    """Start values of what can be changed at run time, where they are not the defaults, under
    Kafka's broker config names."""
    values = ((key, _value(config, key)) for key in KEYS.values() if key.setting.runtime)
    return {key.setting.runtime: str(value) for key, value in values if value != key.default}


def _value(config: ServerConfig, key: Key) -> object:
    return getattr(getattr(config, key.section) if key.section else config, key.field)


_READ_ONLY: Final[Mapping[str, str]] = {
    "broker.id": "broker_id",
    "broker.rack": "rack",
    "listeners": "kafka.addr",
    "advertised.listeners": "kafka.advertised",
    "listener.security.protocol.map": "kafka.security",
    "log.dirs": "data_dir",
    "auto.create.topics.enable": "topic.auto_create",
    "num.partitions": "topic.partitions",
    "default.replication.factor": "topic.replication_factor",
    "group.initial.rebalance.delay.ms": "group.initial_rebalance_delay_ms",
    "group.min.session.timeout.ms": "group.session_timeout_ms_min",
    "group.max.session.timeout.ms": "group.session_timeout_ms_max",
    "group.max.size": "group.size_max",
    "group.consumer.heartbeat.interval.ms": "group.consumer_heartbeat_interval_ms",
    "group.consumer.session.timeout.ms": "group.consumer_session_timeout_ms",
    "group.consumer.assignors": "group.consumer_assignors",
    "group.consumer.max.size": "group.size_max",
    "offsets.retention.minutes": "group.offsets_retention_minutes",
    "offsets.topic.num.partitions": "group.offsets_partitions",
    "transaction.max.timeout.ms": "transaction.timeout_ms_max",
    "transactional.id.expiration.ms": "transaction.id_expiry_ms",
    "transaction.state.log.num.partitions": "transaction.state_partitions",
    "connections.max.idle.ms": "kafka.idle_ms_max",
    "socket.request.max.bytes": "kafka.request_bytes_max",
}
"""Kafka's names of settings that only a restart changes, with ours."""
_OF_LISTENERS: Final = {"listeners", "advertised.listeners", "listener.security.protocol.map"}
_TYPES: Final = {bool: ConfigType.BOOLEAN, int: ConfigType.LONG}


def read_only_configs(config: ServerConfig, me: BrokerId) -> list[ConfigEntry]:
    """Broker configs that DescribeConfigs shows and only a restart changes."""
    values = _read_only_values(replace(config, broker_id=me))
    defaults = _read_only_values(ServerConfig())
    has_named = any(one.protocol is ListenerProtocol.KAFKA for one in config.listeners)
    replaced = _OF_LISTENERS if has_named else set()
    return [
        fixed_entry(
            name,
            values[name],
            f"{describe(KEYS[ours])} Set at the start, as "
            f"{'listeners' if name in replaced else ours}.",
            type=_TYPES.get(KEYS[ours].type, ConfigType.STRING),
            default=defaults[name],
        )
        for name, ours in _READ_ONLY.items()
    ]


def _read_only_values(config: ServerConfig) -> dict[str, str]:
    listeners = listeners_for(config, ListenerProtocol.KAFKA)
    derived = {
        "listeners": ",".join(f"{one.name.upper()}://{one.address}" for one in listeners),
        "advertised.listeners": ",".join(
            f"{one.name.upper()}://{one.advertised or one.address}" for one in listeners
        ),
        "listener.security.protocol.map": ",".join(
            f"{one.name.upper()}:{_security_protocol(one)}" for one in listeners
        ),
        "default.replication.factor": str(
            config.topic.replication_factor or DEFAULT_REPLICATION_MAX
        ),
    }
    return {name: _text(_value(config, KEYS[ours])) for name, ours in _READ_ONLY.items()} | derived


def _text(value: object) -> str:
    """As Kafka has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _security_protocol(listener: ListenerConfig) -> str:
    """Kafka's name for it."""
    transport = "SSL" if listener.uses_tls else "PLAINTEXT"
    return f"SASL_{transport}" if listener.sasl else transport


def is_alone(config: ServerConfig, broker_count: int) -> bool:
    """Whether there is one broker, and `initial_members` names no others that are about to join."""
    members = [one for one in (config.initial_members or "").split(",") if one.strip()]
    return broker_count == 1 and len(members) < 2


def config_warnings(config: ServerConfig) -> list[str]:
    """Settings that are valid, but cannot be met while there is only one broker."""
    found = []
    factor, in_sync = config.topic.replication_factor, config.topic.min_insync_replicas
    if factor is not None and factor > 1:
        found.append(
            f"topic.replication_factor is {factor}, but this is the only broker: creating topics "
            "without an explicit replication factor will fail until other brokers join, or "
            "topic.replication_factor is 1"
        )
    if in_sync > 1:
        found.append(
            f"topic.min_insync_replicas is {in_sync}, but this is the only broker: acks=all will "
            "fail for topics without their own min.insync.replicas until other brokers join, or "
            "topic.min_insync_replicas is 1"
        )
    return found


def upkeep_config(config: ServerConfig) -> MaintenanceConfig:
    return MaintenanceConfig(
        retention_check_ms=config.log.retention_check_ms,
        flush_interval_ms=config.log.flush_interval_ms,
        producer_id_expiry_ms=config.producer.id_expiry_ms,
        disk_reserve_bytes=config.log.disk_reserve_bytes,
    )
