"""Generates the stubs in src/moldau/proto from the .proto files.

    python -m venv build/stubs
    build/stubs/bin/pip install grpcio-tools==1.74.0 mypy-protobuf==3.6.0
    build/stubs/bin/python proto/generate.py

Old tools on purpose: stubs work with the runtime of their version and newer ones, not with older
ones. tests/proto/test_stubs.py compares what is committed with the .proto file.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "moldau/v1/queue.proto"
TARGET = ROOT / "src" / "moldau" / "proto" / "v1"


def main() -> None:
    made = ROOT / "build" / "proto"
    made.mkdir(parents=True, exist_ok=True)
    plugins = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            "-Iproto",
            f"--python_out={made}",
            f"--mypy_out={made}",
            f"--grpc_python_out={made}",
            SOURCE,
        ],
        cwd=ROOT,
        check=True,
    )
    for path in sorted((made / "moldau" / "v1").glob("queue_pb2*.py*")):
        # The stubs are a part of the package, under a name of their own.
        text = path.read_text().replace("from moldau.v1 import", "from moldau.proto.v1 import")
        (TARGET / path.name).write_text(text)


if __name__ == "__main__":
    main()
