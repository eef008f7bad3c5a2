"""The Kafka clients for applications: a typed facade over librdkafka."""
