"""Owns the errors of the consensus core."""

from moldau.model.errors import MoldauError


class RaftError(MoldauError):
    """Something that cannot happen if driver, log and peers keep the rules: stop this replica."""


class RaftRejection(MoldauError):
    """A request that cannot be carried out here and now. Nothing has changed."""
