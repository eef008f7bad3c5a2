"""Errors of the Raft core."""

from moldau.model.errors import MoldauError


class RaftError(MoldauError):
    """Cannot happen if driver, log and peers follow the rules: this replica must stop."""


class RaftRejection(MoldauError):
    """A request that cannot be carried out on this broker now. Nothing has changed."""
