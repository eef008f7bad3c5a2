"""A small blocking client of the Kafka protocol over plain sockets."""
