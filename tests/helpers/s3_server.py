"""A server on this machine that speaks the protocol of S3, in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_until

_KEY, _SECRET, _REGION = "key", "secret", "us-east-1"


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """The environment variables by which a client finds it; it has that bucket."""
    import boto3
    from botocore.exceptions import BotoCoreError

    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    # Not in this process: some clients keep Python busy while they wait for S3.
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        admin = boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
            region_name=_REGION,
        )
        wait_until(
            lambda: admin.create_bucket(Bucket=bucket),
            "the server makes a bucket",
            ignoring=BotoCoreError,
        )
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": _REGION,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        process.terminate()
        process.wait()
