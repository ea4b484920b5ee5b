"""A name that passes is safe in a path, a URL and a file; everything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.wire.errors import WireError
from tinkex.wire.paths import build_path, check_name, parse_path, split_checkpoint_id

letters = st.characters(categories=("L", "N"), include_characters="-_.: ")
safe = st.text(letters, min_size=1, max_size=40).filter(
    lambda name: name == name.strip() and name not in (".", "..")
)


@given(safe, st.sampled_from(["training", "sampler", "external"]), safe)
def test_paths_round_trip(run: str, kind: str, name: str) -> None:
    path = build_path(run, kind, name)  # type: ignore[arg-type]
    parts = parse_path(path)
    assert (parts.training_run_id, parts.name) == (run, name)
    assert split_checkpoint_id(f"{parts.kind}/{parts.name}") == (parts.kind, name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\\b", "a\x00", "a\n", "\u202e", " a", "a ", "x" * 256, "\ud800"],
)
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(WireError, match="name"):
        check_name(name)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "file:///etc/passwd",
        "tinker://run/weights",
        "tinker://run/weights/..",
        "tinker://../weights/x",
        "tinker://run/weights/a/b",
        "tinker://run/other/a",
        "tinker://run/weights/a\nb",
        "TINKER://run/weights/a",
    ],
)
def test_bad_paths_are_refused(path: str) -> None:
    with pytest.raises(WireError):
        parse_path(path)


@pytest.mark.parametrize("checkpoint_id", ["", "weights", "weights/", "other/a", "weights/../a"])
def test_bad_checkpoint_ids_are_refused(checkpoint_id: str) -> None:
    with pytest.raises(WireError, match="checkpoint_id"):
        split_checkpoint_id(checkpoint_id)
