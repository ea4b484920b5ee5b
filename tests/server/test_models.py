"""Promises of model lookup."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tinkex.server.engines import model_sources
from tinkex.server.engines.model_sources import ModelNotFound, build_catalog, resolve
from tinkex.text.hub_cache import hub_cache_directory

CONFIG = {
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 4,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 16,
}


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    """A file of zeros."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def write_model(folder: Path, *, shards: int = 0) -> Path:
    """Whole as far as files and headers show; there is not one tensor in it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    if not shards:
        (folder / "model.safetensors").write_bytes(safetensors({}))
        return folder
    names = {f"w{i}": f"model-{i}.safetensors" for i in range(shards)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    for tensor, name in names.items():
        (folder / name).write_bytes(safetensors({tensor: [2, 2]}))
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def write_snapshot(tmp_path: Path, name: str, revision: str) -> Path:
    repository = tmp_path / "hf" / "hub" / f"models--{name.replace('/', '--')}"
    return write_model(repository / "snapshots" / revision)


def test_a_folder_is_served_under_its_own_name(
    tmp_path: Path, cache: Path, environ: dict[str, str]
) -> None:
    folder = write_model(tmp_path / "my-model", shards=2)
    source = resolve(str(folder), cache, environ)
    assert (source.name, source.folder, source.kind) == ("my-model", folder, "folder")


def test_our_cache_comes_before_the_hugging_face_cache(
    tmp_path: Path, cache: Path, environ: dict[str, str]
) -> None:
    snapshot = write_snapshot(tmp_path, "acme/one", "abc")
    assert resolve("acme/one", cache, environ).folder == snapshot
    ours = write_model(cache / "acme--one")
    assert resolve("acme/one", cache, environ).folder == ours


def test_the_main_revision_is_preferred_and_half_downloads_are_passed_over(
    tmp_path: Path, cache: Path, environ: dict[str, str]
) -> None:
    wanted = write_snapshot(tmp_path, "acme/two", "aaa")
    newer = write_snapshot(tmp_path, "acme/two", "bbb")
    reference = wanted.parent.parent / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text("aaa")
    assert resolve("acme/two", cache, environ).folder == wanted
    (wanted / "model.safetensors").unlink()
    assert resolve("acme/two", cache, environ).folder == newer


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HUB_CACHE": "/x/hub"}, "/x/hub"),
        ({"HF_HOME": "/x"}, "/x/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_the_hugging_face_cache_is_where_their_libraries_put_it(
    variables: dict[str, str], expected: str
) -> None:
    assert str(hub_cache_directory(variables)) == expected


def test_built_in_models_are_made_on_first_use(cache: Path, environ: dict[str, str]) -> None:
    source = resolve("tinkex/tiny-llama", cache, environ)
    assert source.kind == "builtin"
    assert model_sources.missing_part(source.folder) is None
    assert source.folder.is_relative_to(cache)
    assert ":" not in str(source.tokenizer_dir)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model-1.safetensors"])
def test_a_bad_folder_is_refused_by_its_missing_file(
    tmp_path: Path, cache: Path, environ: dict[str, str], file: str
) -> None:
    folder = write_model(tmp_path / "m", shards=2)
    (folder / file).unlink()
    with pytest.raises(ModelNotFound, match=f"{file} is missing") as caught:
        resolve(str(folder), cache, environ)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_says_everything_that_was_tried_in_one_line(
    cache: Path, environ: dict[str, str]
) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve("acme/unknown", cache, environ)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(cache), "hf/hub", "HF_HUB_OFFLINE is set", "tinkex/tiny-llama"):
        assert part in message
    for name in ("justaname", ""):
        with pytest.raises(ModelNotFound, match="neither a folder nor a name"):
            resolve(name, cache, environ)
    with pytest.raises(ModelNotFound, match="does not exist"):
        resolve("./nowhere", cache, environ)


def test_an_alias_serves_its_target_under_another_name_without_loading_it_twice(
    tmp_path: Path, cache: Path, environ: dict[str, str]
) -> None:
    folder = write_model(tmp_path / "m")
    catalog = build_catalog([str(folder)], [f"Qwen/Qwen3-8B={folder}"], cache, environ)
    assert len(catalog.models) == 1
    assert catalog.names() == ("m", "Qwen/Qwen3-8B")
    assert catalog.find("Qwen/Qwen3-8B") is catalog.find("m")
    assert catalog.find("other") is None


def test_an_alias_alone_brings_its_target_and_not_the_default(
    tmp_path: Path, cache: Path, environ: dict[str, str]
) -> None:
    folder = write_model(tmp_path / "m")
    catalog = build_catalog([], [f"big={folder}"], cache, environ)
    assert [model.name for model in catalog.models] == ["m"]


def test_a_folder_is_served_under_the_name_that_scripts_write_too(
    tmp_path: Path, cache: Path, environ: dict[str, str]
) -> None:
    folder = write_model(tmp_path / "Qwen3.6-35B-A3B")
    other = write_model(tmp_path / "m")
    catalog = build_catalog([str(folder)], [], cache, environ)
    assert catalog.names() == ("Qwen3.6-35B-A3B", "Qwen/Qwen3.6-35B-A3B")
    assert catalog.find("Qwen/Qwen3.6-35B-A3B") is catalog.find("Qwen3.6-35B-A3B")
    said = [f"Qwen/Qwen3.6-35B-A3B={other}"]
    assert build_catalog([str(folder)], said, cache, environ).aliases == {
        "Qwen/Qwen3.6-35B-A3B": "m"
    }


@pytest.mark.parametrize("alias", ["x", "=y", "x=", ""])
def test_a_malformed_alias_says_how_to_write_one(
    cache: Path, environ: dict[str, str], alias: str
) -> None:
    with pytest.raises(ModelNotFound, match="NAME=TARGET"):
        build_catalog([], [alias], cache, environ)


def test_names_never_collide(tmp_path: Path, cache: Path, environ: dict[str, str]) -> None:
    one, two = write_model(tmp_path / "a" / "m"), write_model(tmp_path / "b" / "m")
    with pytest.raises(ModelNotFound, match="named alike"):
        build_catalog([str(one), str(two)], [], cache, environ)
    with pytest.raises(ModelNotFound, match="hides a served model"):
        build_catalog([str(one)], [f"m={one}"], cache, environ)


def _another_family(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "mamba"}))


def _quantized(folder: Path) -> None:
    config = {**CONFIG, "quantization_config": {"bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))


def _nonsense_in_the_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "rope_theta": "many"}))


def _cut_short(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors({"w": [9]})[:-1])


def _no_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1 oid")


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _weights_of_another(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors({"model.embed_tokens.weight": [9, 4]}))


def _layers_missing(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors({"model.embed_tokens.weight": [8, 4]}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_another_family, "model_type 'mamba' is not supported"),
        (_quantized, "'quantization_config' is not known"),
        (_nonsense_in_the_config, "rope_theta must be a number above 0"),
        (_cut_short, "model.safetensors is damaged or cut short"),
        (_no_safetensors, "model.safetensors is damaged or cut short"),
        (_empty, "model.safetensors is damaged or cut short"),
        (_weights_of_another, "does not describe these weights"),
        (_layers_missing, "no tensor is named model.layers.0."),
    ],
)
def test_what_no_engine_could_serve_is_refused_from_its_headers_in_one_line(
    tmp_path: Path,
    cache: Path,
    environ: dict[str, str],
    damage: Callable[[Path], None],
    message: str,
) -> None:
    folder = write_model(tmp_path / "m")
    damage(folder)
    with pytest.raises(ModelNotFound, match=re.escape(message)) as caught:
        build_catalog([str(folder)], [], cache, environ)
    assert "\n" not in str(caught.value)


def test_a_shard_without_its_tensor_is_named(
    tmp_path: Path, cache: Path, environ: dict[str, str]
) -> None:
    folder = write_model(tmp_path / "m", shards=2)
    (folder / "model-1.safetensors").write_bytes(safetensors({"other": [1]}))
    with pytest.raises(ModelNotFound, match=r"model-1\.safetensors does not hold 'w1'"):
        build_catalog([str(folder)], [], cache, environ)


def test_judging_a_folder_needs_no_torch(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    program = (
        "import sys; from pathlib import Path; "
        "from tinkex.server.engines.model_check import problem_with; "
        "assert problem_with(Path(sys.argv[1])) is None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
