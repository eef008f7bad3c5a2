"""The committed stubs are those of the .proto file."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from moldau.proto.v1 import queue_pb2

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def test_the_committed_stubs_say_what_the_proto_file_says(tmp_path: Path) -> None:
    out = tmp_path / "queue.desc"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-Iproto",
            f"--descriptor_set_out={out}",
            "moldau/v1/queue.proto",
        ],
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    (wanted,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    # Else: proto/generate.py says how to make them anew.
    committed = descriptor_pb2.FileDescriptorProto()
    queue_pb2.DESCRIPTOR.CopyToProto(committed)
    # The compiler fills these in for its own use.
    for message in [*wanted.message_type, *(n for m in wanted.message_type for n in m.nested_type)]:
        for field in message.field:
            field.ClearField("json_name")
    assert committed == wanted
