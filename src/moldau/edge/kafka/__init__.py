"""The Kafka door: one handler module per API, each declaring its versions."""
