"""Promises of the checkpoint manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkex.server.storage import manifest
from tinkex.server.storage.manifest import CorruptCheckpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "optimizer.safetensors").write_bytes(b"moments")
    return tmp_path


def test_an_untouched_folder_is_accepted_and_its_size_is_known(folder: Path) -> None:
    written = manifest.write(folder)
    assert manifest.verify(folder, written.digest) == written
    assert written.size_bytes == 256 * 40 + len('{"r": 8}') + len("moments")
    assert set(written.files) == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "training/optimizer.safetensors",
    }


@pytest.mark.parametrize("place", [0, 5_000, 10_239])
def test_any_flipped_byte_is_found(folder: Path, place: int) -> None:
    manifest.write(folder)
    path = folder / "adapter_model.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"adapter_model\.safetensors was changed"):
        manifest.verify(folder)


def test_a_missing_an_extra_and_a_cut_file_are_found_by_name(folder: Path) -> None:
    manifest.write(folder)
    extra = folder / "training" / "note.txt"
    extra.write_text("x")
    with pytest.raises(CorruptCheckpoint, match=r"training/note\.txt is not part"):
        manifest.verify(folder)
    extra.unlink()
    optimizer = folder / "training" / "optimizer.safetensors"
    optimizer.write_bytes(b"moment")
    with pytest.raises(CorruptCheckpoint, match=r"has 6 bytes, 7 were saved"):
        manifest.verify(folder)
    optimizer.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"training/optimizer\.safetensors is missing"):
        manifest.verify(folder)


def test_a_rewritten_manifest_does_not_hide_a_change(folder: Path) -> None:
    digest = manifest.write(folder).digest
    (folder / "adapter_config.json").write_text('{"r": 9}')
    manifest.write(folder)
    manifest.verify(folder)
    with pytest.raises(CorruptCheckpoint, match="not the one that was saved"):
        manifest.verify(folder, digest)


def test_a_link_in_the_folder_is_refused(folder: Path) -> None:
    manifest.write(folder)
    (folder / "link").symlink_to("/etc/hostname")
    with pytest.raises(CorruptCheckpoint, match="not a regular file"):
        manifest.verify(folder)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"files": 3}', b'{"files": {"a": {"size": "x"}}}'])
def test_garbage_in_place_of_the_manifest_is_one_clear_error(folder: Path, raw: bytes) -> None:
    (folder / manifest.MANIFEST_NAME).write_bytes(raw)
    with pytest.raises(CorruptCheckpoint, match="is not a manifest"):
        manifest.verify(folder)
