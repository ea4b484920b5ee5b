"""Route replay: tokens that a sampler drew go to the experts it sent them to.

Where the bits of trainer and sampler differ, about every tenth router decides differently, and the
trainer would reinforce a path that the sample did not take. The choices are the sampler's, their
weights the trainer's own, so the gradients are those of the path that was taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tinkex.engine.errors import UserError
from tinkex.engine.losses.inputs import CheckedDatum
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.passes import KeptRoutes, Replayed
from tinkex.engine.to_device import to_device


def replay_of(
    data: Sequence[CheckedDatum], config: ModelConfig, device: torch.device
) -> Replayed | None:
    """For these sequences, packed; None where nothing is kept of any."""
    if all(datum.routes is None for datum in data):
        return None
    mixtures = config.mixtures
    active = next(iter(mixtures.values())).active
    total = sum(len(datum.tokens) for datum in data)
    known = np.zeros(total, dtype=bool)
    experts = np.zeros((len(mixtures), total, active), dtype=np.int64)
    start = 0
    for datum in data:
        if datum.routes is not None:
            stop = start + len(datum.routes)
            known[start:stop] = True
            experts[:, start:stop] = datum.routes.transpose(1, 0, 2)
        start += len(datum.tokens)
    mask, choices = to_device(known, device), to_device(experts, device)
    by_layer = {layer: KeptRoutes(mask, own) for layer, own in zip(mixtures, choices, strict=True)}
    return by_layer.__getitem__


def check_routes(data: Sequence[CheckedDatum], config: ModelConfig) -> None:
    """Kept routes must be of a model like this one."""
    for index, datum in enumerate(data):
        routes = datum.routes
        if routes is None:
            continue
        mixtures = list(config.mixtures.values())
        wanted = (len(mixtures), mixtures[0].active) if mixtures else None
        most = mixtures[0].routed if mixtures else 0
        if routes.shape[1:] != wanted or len(routes) > len(datum.tokens):
            raise UserError(f"data[{index}]: kept routes of {routes.shape} do not fit this model")
        if routes.size and not (int(routes.min()) >= 0 and int(routes.max()) < most):
            raise UserError(f"data[{index}]: kept routes name experts this model does not have")


def replayed_share(data: Sequence[CheckedDatum]) -> dict[str, float]:
    """The part of a call's tokens whose routes were kept; nothing where none were."""
    kept = sum(len(datum.routes) for datum in data if datum.routes is not None)
    return {"e_frac_replayed:mean": kept / sum(len(d.tokens) for d in data)} if kept else {}
