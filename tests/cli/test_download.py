"""Downloads: both ways a server has, cuts, checks, and what is left when it goes wrong."""

from __future__ import annotations

import base64
import io
import tarfile
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.command_line import CommandLine, FakeClients, FakeRest, Ran, done, failed, status_error
from support.file_server import Behaviour, file_server
from support.json_shape import mismatches, shapes
from tinkex.cli.transfer import parts

FILES = {"adapter_config.json": b"{}", "sub/weights.bin": bytes(range(256)) * 4096}
EXTERNAL = "tinker://run-1/external_weights/final"
SAMPLER = "tinker://run-1/sampler_weights/final"
TRAINING = "tinker://run-1/weights/final"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FIRST_DELAY_SECONDS", 0.001)


class DownloadRest(FakeRest):
    """Signs URLs of a file server."""

    def __init__(self, address: str, names: list[str], lifetime: float = 3600) -> None:
        super().__init__()
        self.address, self.names, self.lifetime = address, names, lifetime

    def get_external_weights_urls(self, path: str) -> Any:
        self.calls.append(("urls", path))
        urls = {
            name: f"{self.address}/{name}" + ("?signature=1" if "http" in self.address else "")
            for name in self.names
        }
        expires = datetime.now(UTC) + timedelta(seconds=self.lifetime)
        return done(SimpleNamespace(urls=urls, expires=expires))

    def get_checkpoint_archive_url_from_tinker_path(self, path: str) -> Any:
        self.calls.append(("archive", path))
        if not self.names:
            return failed(status_error(404))
        return done(SimpleNamespace(url=f"{self.address}/{self.names[0]}"))

    def delete_checkpoint_from_tinker_path(self, path: str) -> Any:
        self.calls.append(("delete", path))
        return done()


def download(rest: Any, path: str, folder: Path, *flags: str, service: Any = None) -> Ran:
    line = CommandLine(FakeClients(rest, service=service))
    return line("checkpoint", "download", path, "-o", str(folder), *flags)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tar(entries: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def test_every_file_of_an_external_checkpoint_arrives(tmp_path: Path) -> None:
    with file_server(Behaviour(dict(FILES), digest="")) as address:
        ran = download(DownloadRest(address, list(FILES)), EXTERNAL, tmp_path)
    assert ran.code == 0, ran.err
    assert contents(tmp_path) == {
        f"run-1_external_weights_final/{name}": content for name, content in FILES.items()
    }
    assert "1.0 MB" in ran.out
    assert ran.result.value is not None
    result = ran.result.value.to_dict()
    assert mismatches(result, shapes()["checkpoint download"]) == []


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_files_of_any_size_arrive_whole(tmp_path: Path, size: int) -> None:
    with file_server(Behaviour({"f": b"x" * size})) as address:
        ran = download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path)
    assert ran.code == 0, ran.err
    assert (tmp_path / "run-1_external_weights_final/f").stat().st_size == size


def test_a_cut_is_continued_where_it_happened(tmp_path: Path) -> None:
    content = FILES["sub/weights.bin"]
    behaviour = Behaviour({"f": content}, cut_after=[300_000, 0, 200_000], digest="")
    with file_server(behaviour) as address:
        ran = download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path)
    assert ran.code == 0, ran.err
    assert (tmp_path / "run-1_external_weights_final/f").read_bytes() == content
    assert behaviour.ranges == [None, "bytes=300000-", "bytes=300000-", "bytes=500000-"]


def test_after_a_long_cut_the_same_command_continues(tmp_path: Path) -> None:
    content = FILES["sub/weights.bin"]
    behaviour = Behaviour({"f": content}, cut_after=[300_000, *[0] * 5], digest="")
    with file_server(behaviour) as address:
        first = download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path)
        assert first.code == 1
        assert "Run the same command again to continue" in first.err
        assert not (tmp_path / "run-1_external_weights_final").exists()
        behaviour.ranges.clear()
        again = download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path)
    assert again.code == 0, again.err
    assert behaviour.ranges == ["bytes=300000-"]
    assert contents(tmp_path) == {"run-1_external_weights_final/f": content}


def test_a_file_that_changed_meanwhile_is_fetched_anew(tmp_path: Path) -> None:
    behaviour = Behaviour({"f": b"a" * 500_000}, cut_after=[300_000, *[0] * 5])
    with file_server(behaviour) as address:
        assert download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path).code == 1
        behaviour.files["f"] = b"b" * 400_000
        assert download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path).code == 0
    assert contents(tmp_path) == {"run-1_external_weights_final/f": b"b" * 400_000}


def test_expired_links_are_signed_anew(tmp_path: Path) -> None:
    with file_server(Behaviour({"f": b"1"}, statuses=[403])) as address:
        rest = DownloadRest(address, ["f"])
        assert download(rest, EXTERNAL, tmp_path).code == 0
    assert [call for call in rest.calls if call[0] == "urls"] == [("urls", EXTERNAL)] * 2


def test_links_about_to_expire_are_not_used(tmp_path: Path) -> None:
    with file_server(Behaviour({"f": b"1"})) as address:
        rest = DownloadRest(address, ["f"], lifetime=60)
        assert download(rest, EXTERNAL, tmp_path).code == 0
    assert len([call for call in rest.calls if call[0] == "urls"]) == 2


def test_a_wrong_digest_is_refused_and_nothing_remains(tmp_path: Path) -> None:
    digest = base64.b64encode(b"0" * 32).decode()
    with file_server(Behaviour({"f": b"1"}, digest=digest)) as address:
        ran = download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path)
    assert ran.code == 1
    assert "SHA-256" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_among_the_files_is_checked(tmp_path: Path) -> None:
    manifest = b'{"format": 1, "files": {"f": {"size": 1, "sha256": "00"}}}'
    with file_server(Behaviour({"f": b"1", "manifest.json": manifest})) as address:
        ran = download(DownloadRest(address, ["f", "manifest.json"]), EXTERNAL, tmp_path)
    assert ran.code == 1
    assert "f is not the file that was saved" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_ends_the_download_and_nothing_remains(tmp_path: Path) -> None:
    with file_server(Behaviour({"a": b"1" * 100_000})) as address:
        ran = download(DownloadRest(address, ["a", "b"]), EXTERNAL, tmp_path)
    assert ran.code == 1
    assert "Could not download b" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "C:\\x", "a\\b", "", "a\nb", "a/"])
def test_unsafe_names_are_refused_before_anything_is_fetched(tmp_path: Path, name: str) -> None:
    behaviour = Behaviour({})
    with file_server(behaviour) as address:
        ran = download(DownloadRest(address, ["ok", name]), EXTERNAL, tmp_path)
    assert ran.code == 1
    assert "Unsafe file path in checkpoint: " in ran.err
    assert behaviour.ranges == []
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "run-1_external_weights_final"
    target.mkdir()
    (target / "old").write_text("old")
    with file_server(Behaviour({"f": b"1"})) as address:
        rest = DownloadRest(address, ["f"])
        ran = download(rest, EXTERNAL, tmp_path)
        assert ran.code == 1
        assert f"Target directory already exists: {target}" in ran.err
        assert not any(call[0] == "urls" for call in rest.calls)
        assert download(rest, EXTERNAL, tmp_path, "--force").code == 0
    assert contents(tmp_path) == {"run-1_external_weights_final/f": b"1"}


def test_what_is_to_be_replaced_survives_a_failed_download(tmp_path: Path) -> None:
    target = tmp_path / "run-1_external_weights_final"
    target.mkdir()
    (target / "old").write_text("old")
    with file_server(Behaviour({})) as address:
        assert download(DownloadRest(address, ["f"]), EXTERNAL, tmp_path, "--force").code == 1
    assert contents(tmp_path) == {"run-1_external_weights_final/old": b"old"}


def test_an_empty_checkpoint_is_an_error(tmp_path: Path) -> None:
    ran = download(DownloadRest("http://127.0.0.1:1", []), EXTERNAL, tmp_path)
    assert ran.code == 1
    assert "has no files" in ran.err


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_sampler_checkpoint_comes_as_an_archive(tmp_path: Path, mode: str) -> None:
    entries = [(tarfile.TarInfo(name), content) for name, content in FILES.items()]
    behaviour = Behaviour({"a.tar": tar(entries, mode)}, cut_after=[1000])
    with file_server(behaviour) as address:
        ran = download(DownloadRest(address, ["a.tar"]), SAMPLER, tmp_path)
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "run-1_sampler_weights_final") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["run-1_sampler_weights_final"]


def test_a_request_that_takes_too_long_is_not_blamed_on_the_disk(tmp_path: Path) -> None:
    rest = DownloadRest("", ["f"])
    rest.get_external_weights_urls = lambda _path: Future()
    ran = download(rest, EXTERNAL, tmp_path, "--timeout", "20")
    assert ran.code == 1
    assert ran.err.startswith("Error: Request timeout\n")
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_archives_refuses_sampler_checkpoints(tmp_path: Path) -> None:
    ran = download(DownloadRest("", []), SAMPLER, tmp_path)
    assert ran.code == 1
    assert f"Sampler checkpoints cannot be downloaded: {SAMPLER}" in ran.err
    assert list(tmp_path.iterdir()) == []


class Exporter:
    """A service client that exports training checkpoints."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.saved: list[tuple[str, int]] = []

    def create_training_client_from_state(self, path: str, user_metadata: Any) -> Exporter:
        if self.error:
            raise self.error
        return self

    def save_weights_external(self, name: str, ttl_seconds: int) -> Any:
        self.saved.append((name, ttl_seconds))
        return done(SimpleNamespace(path="tinker://run-2/external_weights/download"))


def test_a_training_checkpoint_is_exported_fetched_and_the_export_deleted(tmp_path: Path) -> None:
    service = Exporter()
    with file_server(Behaviour({"f": b"1"})) as address:
        rest = DownloadRest(address, ["f"])
        ran = download(rest, TRAINING, tmp_path, service=service)
    assert ran.code == 0, ran.err
    assert contents(tmp_path) == {"run-1_weights_final/f": b"1"}
    assert service.saved == [("download", 3600)]
    assert rest.calls[-1] == ("delete", "tinker://run-2/external_weights/download")
    assert "training session" in ran.err


def test_a_server_that_cannot_export_is_asked_for_an_archive(tmp_path: Path) -> None:
    with file_server(Behaviour({"a": tar([(tarfile.TarInfo("f"), b"1")])})) as address:
        rest = DownloadRest(address, ["a"])
        ran = download(rest, TRAINING, tmp_path, service=Exporter(status_error(404)))
    assert ran.code == 0, ran.err
    assert contents(tmp_path) == {"run-1_weights_final/f": b"1"}


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


BAD_ARCHIVES = {
    "parent": tar([(entry("../x"), b"1")]),
    "absolute": tar([(entry("/tmp/x"), b"1")]),
    "hidden parent": tar([(entry("a/../../x"), b"1")]),
    "symbolic link": tar([(entry("x", tarfile.SYMTYPE, "/etc/passwd"), b"")]),
    "hard link": tar([(entry("x", tarfile.LNKTYPE, "/etc/passwd"), b"")]),
    "device": tar([(entry("x", tarfile.CHRTYPE), b"")]),
    "pipe": tar([(entry("x", tarfile.FIFOTYPE), b"")]),
    "twice": tar([(entry("x"), b"1"), (entry("x"), b"2")]),
    "bomb": tar([(entry("x"), bytes(66 << 20))], "w:gz"),
    "many": tar([(entry(f"f{i}"), b"") for i in range(10_001)]),
    "late": tar([(entry("good"), b"1"), (entry("../x"), b"1")]),
    "cut": tar([(entry("x"), b"1" * 100_000)])[:50_000],
    "garbage": b"not an archive at all" * 100,
    "cut gzip": tar([(entry("x"), bytes(range(256)) * 500)], "w:gz")[:700],
}


@pytest.mark.parametrize("kind", BAD_ARCHIVES)
def test_a_bad_archive_is_refused_and_nothing_remains(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with file_server(Behaviour({"a": BAD_ARCHIVES[kind]})) as address:
        ran = download(DownloadRest(address, ["a"]), SAMPLER, folder)
    assert ran.code == 1
    assert "Refused the archive: " in ran.err
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_the_embedded_server_names_files_and_no_other_server_may(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1" * 3_000_000)
    rest = DownloadRest(tmp_path.as_uri(), ["f"])
    line = CommandLine(FakeClients(rest))
    words = ("checkpoint", "download", EXTERNAL, "-o", str(tmp_path / "out"))
    refused = line(*words)
    assert refused.code == 1
    assert "not for downloads" in refused.err
    assert line(*words, "--local").code == 0
    assert (tmp_path / "out/run-1_external_weights_final/f").stat().st_size == 3_000_000
