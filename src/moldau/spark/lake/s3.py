"""Owns how S3 is reached: one set of options for all libraries, and a store for a table's log.

An exclusive create is a conditional put (`If-None-Match: *`), which S3 and those who speak its
protocol honour; pyarrow has none, so the log goes through boto3, and data through pyarrow.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import Stored
from moldau.spark.lake.table import LakeError

ENDPOINT: Final = "endpoint"
ACCESS_KEY: Final = "access_key"
SECRET_KEY: Final = "secret_key"
SESSION_TOKEN: Final = "session_token"
REGION: Final = "region"
CATALOG: Final = "catalog"
NAMES: Final = (ENDPOINT, ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, REGION, CATALOG)
"""What `storage` may say. What it does not say, each library takes from where it is usual: the
variables AWS_…, the files below ~/.aws, the machine's role."""

_GONE: Final = ("404", "NoSuchKey", "NotFound")
_TAKEN: Final = ("412", "PreconditionFailed", "409", "ConditionalRequestConflict")


def check_names(storage: Mapping[str, str]) -> None:
    """InvalidArgumentError for an option that means nothing."""
    strange = [name for name in storage if name not in NAMES]
    if strange:
        raise InvalidArgumentError(
            f"unknown storage option {strange[0]}", hint=f"--storage knows {', '.join(NAMES)}"
        )


def s3_filesystem(storage: Mapping[str, str]) -> Any:
    """pyarrow's."""
    from pyarrow import fs

    check_names(storage)
    said: dict[str, Any] = {
        "access_key": storage.get(ACCESS_KEY),
        "secret_key": storage.get(SECRET_KEY),
        "session_token": storage.get(SESSION_TOKEN),
        "region": storage.get(REGION),
    }
    if endpoint := storage.get(ENDPOINT):
        scheme, _, address = endpoint.rpartition("://")
        said |= {"endpoint_override": address, "scheme": scheme or "https"}
    return fs.S3FileSystem(**{name: value for name, value in said.items() if value is not None})


def delta_options(storage: Mapping[str, str]) -> dict[str, str]:
    """As the package deltalake names them."""
    check_names(storage)
    said = {
        "AWS_ENDPOINT_URL": storage.get(ENDPOINT),
        "AWS_ACCESS_KEY_ID": storage.get(ACCESS_KEY),
        "AWS_SECRET_ACCESS_KEY": storage.get(SECRET_KEY),
        "AWS_SESSION_TOKEN": storage.get(SESSION_TOKEN),
        "AWS_REGION": storage.get(REGION),
        "AWS_ALLOW_HTTP": "true" if storage.get(ENDPOINT, "").startswith("http://") else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def iceberg_options(storage: Mapping[str, str]) -> dict[str, str]:
    """As the package pyiceberg names them."""
    check_names(storage)
    said = {
        "s3.endpoint": storage.get(ENDPOINT),
        "s3.access-key-id": storage.get(ACCESS_KEY),
        "s3.secret-access-key": storage.get(SECRET_KEY),
        "s3.session-token": storage.get(SESSION_TOKEN),
        "s3.region": storage.get(REGION),
    }
    return {name: value for name, value in said.items() if value is not None}


class S3Store:
    """A prefix of a bucket."""

    def __init__(self, location: str, storage: Mapping[str, str]) -> None:
        try:
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise LakeError(
                "a table of Parquet files at S3 needs the package boto3",
                hint="install it: pip install 'moldau[spark]'",
            ) from None
        check_names(storage)
        self._location = location
        self._bucket, _, self._prefix = location.removeprefix("s3://").partition("/")
        self._is_exclusive = False
        """Known only after the first look."""
        self._said_no: type[Exception] = ClientError
        self._failures: tuple[type[Exception], ...] = (ClientError, BotoCoreError)
        self._client = boto3.client(
            "s3",
            endpoint_url=storage.get(ENDPOINT),
            aws_access_key_id=storage.get(ACCESS_KEY),
            aws_secret_access_key=storage.get(SECRET_KEY),
            aws_session_token=storage.get(SESSION_TOKEN),
            region_name=storage.get(REGION),
        )

    def read(self, path: str) -> bytes | None:
        found = self._asked("get_object", _GONE, Key=self._key(path))
        if found is None:
            return None
        data: bytes = found["Body"].read()
        return data

    def exists(self, path: str) -> bool:
        return self._asked("head_object", _GONE, Key=self._key(path)) is not None

    def create(self, path: str, data: bytes) -> bool:
        if not self._is_exclusive:
            self._check_exclusive(path)
        return self._created(path, data)

    def _created(self, path: str, data: bytes) -> bool:
        said = self._asked("put_object", _TAKEN, Key=self._key(path), Body=data, IfNoneMatch="*")
        return said is not None

    def _check_exclusive(self, path: str) -> None:
        """A server that does not know of conditions takes everything: commits would be lost."""
        probe = f"{path.rpartition('/')[0]}/.probe-{uuid4().hex}"
        try:
            if self._created(probe, b"1") and self._created(probe, b"2"):
                raise LakeError(
                    f"the server of {self._location} passes over If-None-Match: of two that commit "
                    "at once, one would be lost",
                    hint="use a server that honours conditional puts, or --format iceberg with "
                    "--storage catalog=…",
                )
        finally:
            self.delete(probe)
        self._is_exclusive = True

    def put(self, path: str, data: bytes) -> None:
        self._asked("put_object", (), Key=self._key(path), Body=data)

    def move(self, source: str, target: str) -> bool:
        """A copy, then a delete: one that was interrupted is done again from the start."""
        origin = {"Bucket": self._bucket, "Key": self._key(source)}
        if not self.exists(source):
            return False
        try:
            # Copies in parts what is too large for one request.
            self._client.copy(origin, self._bucket, self._key(target))
        except self._failures as error:
            if _code(error) in _GONE:
                return False
            raise self._failed("copy", error) from error
        self.delete(source)
        return True

    def delete(self, path: str) -> None:
        self._asked("delete_object", _GONE, Key=self._key(path))

    def list(self, prefix: str) -> Iterator[Stored]:
        now = time.time()
        start = self._key(prefix) if prefix else self._prefix
        pages = self._client.get_paginator("list_objects_v2")
        try:
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{start.rstrip('/')}/"):
                for found in page.get("Contents", ()):
                    path = found["Key"].removeprefix(f"{self._prefix}/")
                    age = now - found["LastModified"].timestamp()
                    yield Stored(path, found["Size"], age)
        except self._failures as error:
            raise self._failed("list_objects_v2", error) from error

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}"

    def _asked(
        self, request: str, fine: tuple[str, ...], **arguments: Any
    ) -> dict[str, Any] | None:
        """The answer; None if it is one of the codes that are fine."""
        try:
            answer: dict[str, Any] = getattr(self._client, request)(
                Bucket=self._bucket, **arguments
            )
        except self._failures as error:
            if _code(error) in fine:
                return None
            raise self._failed(request, error) from error
        return answer

    def _failed(self, request: str, error: Exception) -> LakeError:
        return LakeError(
            f"S3 did not do {request} for {self._location}: {error}",
            hint="--storage says how it is reached: endpoint, access_key, secret_key, region",
        )


def _code(error: Exception) -> str:
    answer = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
