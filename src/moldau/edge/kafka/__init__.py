"""The Kafka protocol server: one handler module per API, each declaring its versions."""
