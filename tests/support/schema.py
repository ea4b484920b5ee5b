"""Making the generated protobuf modules from `schema.proto`, as they are checked in."""

import subprocess
import sys
from pathlib import Path

import tinkex.wire

WIRE = Path(next(iter(tinkex.wire.__path__)))
GENERATED = ("schema_pb2.py", "schema_pb2.pyi")


def generate(folder: Path) -> dict[str, str]:
    """Run protoc into `folder`; file name -> text, adapted for a pool of our own."""
    command = ["--python_out", str(folder), "--pyi_out", str(folder), "schema.proto"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", str(WIRE), *command], check=True
    )
    return {name: _adapted((folder / name).read_text()) for name in GENERATED}


def _adapted(text: str) -> str:
    """Two changes to what protoc writes.

    The official package registers the same message names in the process-wide pool, so ours live in
    a pool of their own. The version check refuses every runtime older than the compiler, although
    these messages need nothing new, so it goes.
    """
    text = text.replace("_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
    before, opening, rest = text.partition("_runtime_version.ValidateProtobufRuntimeVersion(")
    text = before + rest.partition(")\n")[2] if opening else before
    lines = text.splitlines(keepends=True)
    unwanted = ("import runtime_version", "# Protobuf Python Version", "_sym_db", "symbol_database")
    return "".join(line for line in lines if not any(mark in line for mark in unwanted))
