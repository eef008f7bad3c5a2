"""One replica is made the only voter of its group, on the files that its broker left."""

from moldau.log.disk_log import open_disk_log
from moldau.log.filesystem import Files
from moldau.log.interface import LogConfig
from moldau.model.ids import BrokerId, Epoch
from moldau.raft.membership import Members
from moldau.replica.only_voter import make_only_voter


def force_on_disk(
    files: Files,
    path: str,
    config: LogConfig,
    *,
    me: BrokerId,
    voted_epoch: Epoch,
    initial: Members,
    epoch: Epoch,
) -> bool:
    log = open_disk_log(files, path, config)
    is_done = make_only_voter(log, me=me, voted_epoch=voted_epoch, initial=initial, epoch=epoch)
    log.close()
    return is_done
