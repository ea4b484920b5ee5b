"""Clients for tests: quick delays, no telemetry, nothing from the environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tinkex
from support.protocol_server import ProtocolServer
from tinkex.client.events.bus import EventBus
from tinkex.client.settings.config import Config
from tinkex.client.settings.timings import Timings
from tinkex.types import Datum, ModelInput, SamplingParams

# Servers' wishes are honoured in full; only our own delays are short. No probes: they would take
# answers that a script has for others.
QUICK = replace(Timings().scaled(0.01), retry_after_max=60.0, outage_probe_delay=60.0)


def quick_config(url: str, key: str = "tml-test", **overrides: Any) -> Config:
    """A configuration whose delays are a hundredth of the real ones, with its own event bus."""
    values: dict[str, Any] = {"timings": QUICK, "telemetry": False, "events": EventBus()}
    return Config.resolve(base_url=url, api_key=key, environ={}, **{**values, **overrides})


def service_for(
    server: ProtocolServer, key: str = "tml-test", **overrides: Any
) -> tinkex.ServiceClient:
    return tinkex.ServiceClient.from_config(quick_config(server.url, key, **overrides))


def datum(*tokens: int) -> Datum:
    return Datum(
        model_input=ModelInput.from_ints(list(tokens)),
        loss_fn_inputs={"target_tokens": [*tokens[1:], 0], "weights": [1.0] * len(tokens)},
    )


def prompt(*tokens: int) -> ModelInput:
    return ModelInput.from_ints(list(tokens))


PARAMS = SamplingParams(max_tokens=3)
