"""The broker's configuration: a frozen schema, and the loader that fills it from its layers."""

from moldau.server.config.load import InvalidConfigError, ResolvedConfig, Source, load_config
from moldau.server.config.schema import (
    Address,
    GroupConfig,
    KafkaConfig,
    LogFormat,
    LoggingConfig,
    LogLevel,
    ProducerConfig,
    ServerConfig,
    StorageConfig,
    TopicConfig,
    TransactionConfig,
)

__all__ = [
    "Address",
    "GroupConfig",
    "InvalidConfigError",
    "KafkaConfig",
    "LogFormat",
    "LogLevel",
    "LoggingConfig",
    "ProducerConfig",
    "ResolvedConfig",
    "ServerConfig",
    "Source",
    "StorageConfig",
    "TopicConfig",
    "TransactionConfig",
    "load_config",
]
