"""Connections between brokers: one outgoing link per peer, one listener for theirs."""
