"""Writes src/holdfast/wire/contract_pb2.py, its types and the gRPC stubs from proto/holdfast.proto. `--check` only compares.

Needs what the extra [test] installs; nobody needs it to use or build the package. Compared are the descriptors, not the text of the files: another release of the
compiler writes the same contract with other comments.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "proto" / "holdfast.proto"
TARGET = ROOT / "src"
NAME = "holdfast/wire/contract.proto"  # so that the generated modules import each other by their real names


def compile_to(folder: Path, *outputs: str) -> None:
    (folder / NAME).parent.mkdir(parents=True)
    (folder / NAME).write_text(SOURCE.read_text())
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", *outputs, NAME],
        check=True,
        cwd=folder,
    )


def descriptor() -> bytes:
    """What the contract says now, as the compiler understands it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with tempfile.TemporaryDirectory() as name:
        compile_to(Path(name), f"--descriptor_set_out={name}/set")
        files = FileDescriptorSet.FromString((Path(name) / "set").read_bytes())
    return bytes(files.file[0].SerializeToString(deterministic=True))


def generated() -> bytes:
    """What the generated module says."""
    sys.path.insert(0, str(TARGET))
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from holdfast.wire import contract_pb2

    found = FileDescriptorProto.FromString(contract_pb2.DESCRIPTOR.serialized_pb)
    for message in found.message_type:
        for field in message.field:
            field.ClearField("json_name")
    return bytes(found.SerializeToString(deterministic=True))


def same() -> bool:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    fresh = FileDescriptorProto.FromString(descriptor())
    for message in fresh.message_type:
        for field in message.field:
            field.ClearField("json_name")
    return bytes(fresh.SerializeToString(deterministic=True)) == generated()


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(not same())
    with tempfile.TemporaryDirectory() as name:
        compile_to(
            Path(name),
            f"--python_out={TARGET}",
            f"--pyi_out={TARGET}",
            f"--grpc_python_out={TARGET}",
        )
