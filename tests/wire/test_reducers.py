"""Metrics of several chunks become one set, by the rule in their name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.types import ForwardBackwardOutput, TensorData
from tinkex.wire.reducers import reduce_metrics

RULES = ["mean", "sum", "min", "max", "slack", "hash2", "unique"]


def test_each_rule() -> None:
    chunks = [{f"x:{rule}": value for rule in RULES} for value in (1.0, 4.0)]
    assert reduce_metrics(chunks, [3, 1]) == {
        "x:mean": 1.75,
        "x:sum": 5.0,
        "x:min": 1.0,
        "x:max": 4.0,
        "x:slack": 2.25,
        "x:hash2": 5,
        "x:unique": 1.0,
        "x:unique_1": 4.0,
    }


def test_odd_keys_do_not_cost_a_step() -> None:
    chunks = [{"plain": 1.0, "a:b:c": 2.0, "x:median": 3.0, "only:sum": 1.0}, {"plain": 9.0}]
    chunks[1].update({"a:b:c": 8.0, "x:median": 4.0})
    assert reduce_metrics(chunks, [1, 1]) == {"plain": 1.0, "a:b:c": 2.0}


def test_no_chunks_and_no_datums_are_harmless() -> None:
    assert reduce_metrics([], []) == {}
    assert reduce_metrics([{"x:mean": 2.0}, {"x:mean": 4.0}], [0, 0]) == {"x:mean": 3.0}


keys = st.tuples(st.sampled_from("ab"), st.sampled_from([*RULES, "odd"])).map(":".join)
values = st.floats(-1e6, 1e6)


@given(
    st.lists(st.tuples(st.dictionaries(keys, values), st.integers(1, 5)), min_size=1, max_size=4)
)
def test_the_official_client_reduces_the_same(chunks: list[tuple[dict[str, float], int]]) -> None:
    combine = pytest.importorskip("tinker.lib.chunked_fwdbwd_helpers")
    official = pytest.importorskip("tinker").ForwardBackwardOutput
    outputs = [official("x", [{}] * count, metrics) for metrics, count in chunks]
    wanted = combine.combine_fwd_bwd_output_results(outputs).metrics
    found = reduce_metrics([metrics for metrics, _ in chunks], [count for _, count in chunks])
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-9, abs=1e-6)


def test_outputs_are_values_of_the_types_floor() -> None:
    output = ForwardBackwardOutput("ArrayRecord", [{"logprobs": TensorData([1.0], "float32")}])
    assert output.metrics == {}
