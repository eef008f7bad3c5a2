"""Handles corrupt entries in an Append: the follower reports them, the leader checks its own log.

A batch that fails its checksum on arrival was most likely corrupt at its source. The follower
ignores it and reports it; the leader verifies its own entries in the same way. If they are corrupt,
the group stops on this broker and the other members go on without it; if not, the entries are sent
again later. Connections and other groups are not affected.
"""

import logging
from typing import Final

from moldau.log.disk_log import read_slice
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError, RefusedError, StorageError
from moldau.model.ids import RaftIndex
from moldau.model.slices import FileSlice
from moldau.raft.events import Role
from moldau.raft.messages import AppendRequest
from moldau.replica.peer_codec import (
    CorruptAppend,
    RaftEnvelope,
    decode_frame,
    encode_append,
    encode_message,
)
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup

log = logging.getLogger(__name__)

_CHECK_MS_MIN: Final = 400
"""Between two checks of one group: a check reads from the disk."""


def report_to_leader(peer: Peer, group: RaftGroup, envelope: RaftEnvelope) -> None:
    message = envelope.message
    log.error(
        "group %s: rejected corrupt entries from leader %d, which was notified: %s",
        group.name,
        peer.id,
        envelope.corruption,
        extra=events.ENTRIES_CORRUPT(group=group.name, peer=peer.id),
    )
    if isinstance(message, AppendRequest):
        peer.post(encode_message(group.wire, CorruptAppend(message.epoch, message.start)))


def check_own_entries(group: RaftGroup, report: CorruptAppend, now: int, bytes_max: int) -> None:
    """Check entries that a follower reported. Raises CorruptionError if they are corrupt here."""
    core, view = group.core, group.view
    if core.role is not Role.LEADER or report.epoch != core.epoch:
        return
    is_entry = view.start_index <= report.start < group.log.end_index
    if not is_entry or now - group.corruption_checked_at < _CHECK_MS_MIN:
        return
    group.corruption_checked_at = now
    if view.boundary(report.start) != report.start:
        return
    reason = _find_corruption(group, report.start, bytes_max)
    if reason:
        raise CorruptionError(
            f"corrupt entries in group {group.name} from index {report.start} on: {reason}"
        )
    log.warning(
        "group %s: a follower reported corrupt entries from index %d on, but they are intact here; "
        "they are sent again",
        group.name,
        report.start,
        extra=events.ENTRIES_SENT_AGAIN(group=group.name),
    )


def _find_corruption(group: RaftGroup, start: RaftIndex, bytes_max: int) -> str:
    """Decode the entries as a follower would; returns what is wrong, or an empty string."""
    # From the disk, not from a read before the corruption.
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
        raise StorageError(f"cannot read the log of group {group.name}: {error}") from error
    core = group.core
    head = encode_append(group.wire, core.epoch, start, core.epoch, core.commit, len(entries))
    return next(decode_frame(memoryview(head + entries))).corruption
