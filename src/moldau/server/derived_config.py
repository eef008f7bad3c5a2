"""Derives Kafka's broker configs, warnings and service settings from the configuration."""

from typing import Final

from msgspec.structs import replace

from moldau.data.maintenance import MaintenanceConfig
from moldau.metadata.replica_rules import DEFAULT_REPLICATION_MAX
from moldau.model.errors import ConfigError
from moldau.server.config.keys import KEYS
from moldau.server.config.listeners import listeners_for
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol

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


def runtime_defaults(config: ServerConfig) -> dict[str, str]:
    """Start values of all that can be changed at run time, under Kafka's broker config names."""
    return {
        key.setting.runtime: str(getattr(getattr(config, key.section), key.field))
        for key in KEYS.values()
        if key.setting.runtime
    }


def read_only_configs(config: ServerConfig) -> dict[str, str]:
    """Broker configs that DescribeConfigs shows and only a restart changes."""
    kafka = config.kafka
    listeners = listeners_for(config, ListenerProtocol.KAFKA)
    return {
        "broker.id": str(1 if config.broker_id is None else config.broker_id),
        "broker.rack": config.rack or "",
        "listeners": ",".join(f"{one.name.upper()}://{one.address}" for one in listeners),
        "advertised.listeners": ",".join(
            f"{one.name.upper()}://{one.advertised or one.address}" for one in listeners
        ),
        "listener.security.protocol.map": ",".join(
            f"{one.name.upper()}:{_security_protocol(one)}" for one in listeners
        ),
        "log.dirs": config.data_dir,
        "auto.create.topics.enable": str(config.topic.auto_create).lower(),
        "num.partitions": str(config.topic.partitions),
        "default.replication.factor": str(
            config.topic.replication_factor or DEFAULT_REPLICATION_MAX
        ),
        "group.initial.rebalance.delay.ms": str(config.group.initial_rebalance_delay_ms),
        "group.min.session.timeout.ms": str(config.group.session_timeout_ms_min),
        "group.max.session.timeout.ms": str(config.group.session_timeout_ms_max),
        "group.max.size": str(config.group.size_max),
        "group.consumer.heartbeat.interval.ms": str(config.group.consumer_heartbeat_interval_ms),
        "group.consumer.session.timeout.ms": str(config.group.consumer_session_timeout_ms),
        "group.consumer.assignors": config.group.consumer_assignors,
        "group.consumer.max.size": str(config.group.size_max),
        "offsets.retention.minutes": str(config.group.offsets_retention_minutes),
        "offsets.topic.num.partitions": str(config.group.offsets_partitions),
        "transaction.max.timeout.ms": str(config.transaction.timeout_ms_max),
        "transactional.id.expiration.ms": str(config.transaction.id_expiry_ms),
        "transaction.state.log.num.partitions": str(config.transaction.state_partitions),
        "connections.max.idle.ms": str(kafka.idle_ms_max),
        "socket.request.max.bytes": str(kafka.request_bytes_max),
    }


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
