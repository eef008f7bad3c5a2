"""Moldau: a distributed, fault-tolerant message queue and log that speaks Kafka."""

__version__ = "0.1.0"
