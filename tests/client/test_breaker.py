"""The circuit breaker: opens after failures, lets one probe through, closes again."""

import pytest

from tinkex.client.settings.breaker import BreakerConfig, CircuitBreaker


def test_the_circuit_opens_after_consecutive_failures_and_probes_once() -> None:
    now = 100.0
    breaker = CircuitBreaker(BreakerConfig(failures=2, cooldown=30.0), clock=lambda: now)
    assert breaker.refusal() is None
    assert breaker.failed() is False
    breaker.succeeded()
    assert breaker.failed() is False
    assert breaker.failed() is True
    now += 29.0
    assert breaker.refusal() == 1.0
    now += 1.0
    assert breaker.refusal() is None, "one probe may pass"
    assert breaker.refusal() is not None, "and only one"
    assert breaker.failed() is False
    assert breaker.is_open
    now += 30.0
    assert breaker.refusal() is None
    assert breaker.succeeded() is True
    assert breaker.refusal() is None


@pytest.mark.parametrize("bad", [{"failures": 0}, {"cooldown": -1.0}])
def test_a_breaker_that_cannot_work_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        BreakerConfig(**bad)
