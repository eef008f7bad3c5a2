"""The protocol servers: Kafka, HTTP and gRPC. They reach the broker only through `moldau.api`."""
