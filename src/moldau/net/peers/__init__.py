"""Connections between brokers: one outgoing link per peer, and a listener for theirs."""
