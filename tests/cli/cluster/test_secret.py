"""`moldau cluster secret create` for directories of older versions."""

from moldau.log.datadir import Identity, write_identity
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import BrokerId
from moldau.model.layout import SECRET_FILE


def test_directories_get_the_same_secret_which_is_not_shown(cli, tmp_path):
    directories = [tmp_path / "1", tmp_path / "2"]
    for number, directory in enumerate(directories, 1):
        directory.mkdir()
        owner = Identity(broker_id=BrokerId(number), cluster_id="c", directory_id="d")
        write_identity(OsFiles(directory), owner)
    outcome = cli("cluster", "secret", "create", *directories)
    assert (outcome.code, outcome.out) == (0, "")
    first, second = ((directory / SECRET_FILE).read_text() for directory in directories)
    assert first == second
    assert first.split()[1] not in outcome.err
    for directory in directories:
        assert f"wrote {directory / SECRET_FILE}" in outcome.err
    again = cli("cluster", "secret", "create", *directories)
    assert "nothing to do" in again.err


def test_what_is_no_data_directory_is_refused(cli, tmp_path):
    outcome = cli("cluster", "secret", "create", tmp_path)
    assert outcome.code != 0
    assert outcome.err.startswith(f"error: {tmp_path} is not the data directory of a broker")
