"""A name that passes is safe in a path, a URL and a file; everything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.types.tinker_path import CHECKPOINT_KINDS, checkpoint_path
from tinkex.wire.errors import WireError
from tinkex.wire.paths import check_name, parse_path

letters = st.characters(categories=("L", "N"), include_characters="-_.: ")
safe = st.text(letters, min_size=1, max_size=40).filter(
    lambda name: name == name.strip() and name not in (".", "..")
)


@given(safe, st.sampled_from([*CHECKPOINT_KINDS]), safe)
def test_paths_round_trip(run: str, kind: str, name: str) -> None:
    assert parse_path(checkpoint_path(run, kind, name)) == (run, kind, name)


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
