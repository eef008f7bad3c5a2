"""Owns the `queue` assignor: nobody gets a partition, since every member may take from all of them.

It also marks the groups whose members share messages: no other consumer may be in them.
"""

from collections.abc import Mapping
from typing import Final

from moldau.groups.assignors.interface import NOTHING, Assignment, GroupSpec

QUEUE_ASSIGNOR: Final = "queue"


class QueueAssignor:
    """See the module."""

    name: Final = QUEUE_ASSIGNOR

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        return dict.fromkeys(spec.members, NOTHING)
