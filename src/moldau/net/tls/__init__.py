"""TLS over the sockets of connections: contexts from files, encryption, and bounded handshakes."""
