"""`moldau cluster secret`: for directories of older versions, and a new secret."""

from moldau.log.datadir import Identity, write_identity
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import BrokerId
from moldau.model.layout import SECRET_FILE


def directories_of(tmp_path, count):
    directories = [tmp_path / str(number) for number in range(1, count + 1)]
    for number, directory in enumerate(directories, 1):
        directory.mkdir()
        owner = Identity(broker_id=BrokerId(number), cluster_id="c", directory_id="d")
        write_identity(OsFiles(directory), owner)
    return directories


def test_directories_get_the_same_secret_which_is_not_shown(cli, tmp_path):
    directories = directories_of(tmp_path, 2)
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


def test_a_new_secret_is_written_and_the_old_one_removed_when_that_is_asked_for(cli, tmp_path):
    (directory,) = directories_of(tmp_path, 1)
    path = directory / SECRET_FILE
    assert cli("cluster", "secret", "create", directory).code == 0
    old = path.read_text()
    begun = cli("cluster", "secret", "rotate", directory)
    assert (begun.code, begun.out) == (0, "")
    new, kept = path.read_text().splitlines(keepends=True)
    assert kept == old != new
    assert "rotate --finish" in begun.err
    again = cli("cluster", "secret", "rotate", directory)
    assert again.code != 0
    finished = cli("cluster", "secret", "rotate", "--finish", directory)
    assert finished.code == 0
    assert path.read_text() == new
    for outcome in (begun, again, finished):
        assert new.split()[1] not in outcome.err
