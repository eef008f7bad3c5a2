"""The `queue` assignor: assigns no partitions, since every member polls from all of them.

It also marks queue groups: members with another assignor cannot join them.
"""

from collections.abc import Mapping
from typing import Final

from moldau.groups.assignors.interface import NOTHING, Assignment, GroupSpec

QUEUE_ASSIGNOR: Final = "queue"


class QueueAssignor:
    name: Final = QUEUE_ASSIGNOR

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        return dict.fromkeys(spec.members, NOTHING)
