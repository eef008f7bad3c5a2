"""Owns what happens when a follower cannot take entries because they are damaged.

A batch that fails its checksum on arrival was mostly damaged where it came from. The follower
leaves it out and says so; the leader looks at its own entries as the follower did. If they are
damaged, that group stops here, and the others of the group go on without this broker; if not, they
are sent again in a while. Connections and other groups have no part in it.
"""

import logging
from typing import Final

from moldau.log.disk import read_slice
from moldau.model.errors import CorruptionError, RefusedError, StorageError
from moldau.model.ids import RaftIndex
from moldau.model.slices import FileSlice
from moldau.raft.events import Role
from moldau.raft.messages import AppendRequest
from moldau.replica.peer import Peer
from moldau.replica.peer_codec import (
    CorruptAppend,
    RaftEnvelope,
    decode_frame,
    encode_append,
    encode_corrupt_append,
)
from moldau.replica.raft_group import RaftGroup

log = logging.getLogger(__name__)

_CHECK_MS_MIN: Final = 400
"""Between two looks at one group's entries: a look costs a read of the disk."""


def report_to_leader(peer: Peer, group: RaftGroup, parcel: RaftEnvelope) -> None:
    """Its Append brought entries that nobody can have written."""
    message = parcel.message
    log.error("%s: broker %d sent damaged entries: %s", group.name, peer.id, parcel.damage)
    if isinstance(message, AppendRequest):
        peer.post(encode_corrupt_append(group.wire, CorruptAppend(message.epoch, message.start)))


def check_own_entries(group: RaftGroup, told: CorruptAppend, now: int, bytes_max: int) -> None:
    """A follower says that it was sent damaged entries. Raises CorruptionError if they are."""
    core, view = group.core, group.view
    if core.role is not Role.LEADER or told.epoch != core.epoch:
        return
    is_entry = view.start_index <= told.start < group.log.end_index
    if not is_entry or now - group.damage_checked_at < _CHECK_MS_MIN:
        return
    group.damage_checked_at = now
    if view.boundary(told.start) != told.start:
        return
    reason = _find_damage(group, told.start, bytes_max)
    if reason:
        raise CorruptionError(f"entries of {group.name} from {told.start} on: {reason}")
    log.warning("%s: entries from %d on are intact here", group.name, told.start)


def _find_damage(group: RaftGroup, start: RaftIndex, bytes_max: int) -> str:
    """Take the entries in as a follower would."""
    # From the disk, and not what was read before it was damaged.
    group.view.forget_read()
    try:
        reading = group.view.read(start, bytes_max)
        entries = b"".join(
            read_slice(chunk) if isinstance(chunk, FileSlice) else chunk for chunk in reading.chunks
        )
    except RefusedError:
        # Deleted meanwhile.
        return ""
    except OSError as error:
        raise StorageError(f"{group.name} cannot be read: {error}") from error
    core = group.core
    head = encode_append(group.wire, core.epoch, start, core.epoch, core.commit, len(entries))
    return next(decode_frame(memoryview(head + entries))).damage
