"""The generated protobuf module is what `schema.proto` says, and lives beside the official one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.schema import WIRE, generate

pytest.importorskip("grpc_tools")


def test_the_checked_in_module_is_what_protoc_makes_of_the_schema(tmp_path: Path) -> None:
    """TINKEX_REGENERATE=1 writes it anew."""
    for name, text in generate(tmp_path).items():
        if os.environ.get("TINKEX_REGENERATE"):
            (WIRE / name).write_text(text)
        assert (WIRE / name).read_text() == text


@pytest.mark.parametrize("order", ["tinker ours", "ours tinker"])
def test_both_packages_can_be_imported_in_either_order(order: str) -> None:
    pytest.importorskip("tinker")
    modules = {"tinker": "tinker.proto.tinker_public_pb2", "ours": "tinkex.wire.schema_pb2"}
    code = "; ".join(f"import {modules[name]}" for name in order.split())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


OUR_FIELDS = range(50_000, 60_000)


def test_every_message_and_field_equals_the_official_one_but_for_ours() -> None:
    """Ours lie where no other field of theirs will be, and their decoders skip them."""
    theirs = pytest.importorskip("tinker.proto.tinker_public_pb2").DESCRIPTOR
    from tinkex.wire.schema_pb2 import DESCRIPTOR as ours

    def shape(file: object) -> dict[str, list[tuple[object, ...]]]:
        return {
            name: sorted(
                (f.number, f.name, f.type, f.is_repeated)
                for f in message.fields
                if f.number not in OUR_FIELDS
            )
            for name, message in file.message_types_by_name.items()
            if not all(f.number in OUR_FIELDS for f in message.fields)
        }

    assert shape(ours) == shape(theirs)
    for name, enum in theirs.enum_types_by_name.items():
        mine = ours.enum_types_by_name[name]
        assert {v.name: v.number for v in mine.values} == {v.name: v.number for v in enum.values}
