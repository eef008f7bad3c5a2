"""A small client that speaks the Kafka protocol over plain sockets."""
