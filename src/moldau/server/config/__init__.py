"""The broker's configuration: a frozen schema, and the loader that fills it from its layers."""

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
)

__all__ = [
    "Address",
    "GroupConfig",
    "KafkaConfig",
    "LogFormat",
    "LogLevel",
    "LoggingConfig",
    "ProducerConfig",
    "ServerConfig",
    "StorageConfig",
    "TopicConfig",
]
