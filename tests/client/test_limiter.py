"""The rate limiter: waits only when told to, shared by URL and key alone."""

from tinkex.client.api.limiter import RateLimiter, shared_limiter


async def test_a_limiter_waits_only_when_held() -> None:
    limiter = RateLimiter()
    assert await limiter.wait() == 0.0
    limiter.hold(0.02)
    limiter.hold(0.001)  # a shorter wish does not shorten the longer one
    assert await limiter.wait() > 0.01


def test_limiters_are_shared_by_url_and_key_only() -> None:
    one = shared_limiter("http://a", "tml-k")
    assert shared_limiter("http://a", "tml-k") is one
    assert shared_limiter("http://b", "tml-k") is not one
    assert shared_limiter("http://a", "tml-l") is not one
