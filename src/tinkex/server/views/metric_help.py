"""What the metrics of a history are, in a few words each."""

from __future__ import annotations

_HELP = {
    "loss": "loss per token that counts",
    "loss:sum": "loss, summed with the weights as given",
    "learning_rate": "learning rate of the step",
    "grad_norm": "norm of the gradient before clipping",
    "update_norm": "norm of what the step added to the weights",
    "tokens": "tokens trained on in the step",
    "tokens_per_s": "tokens trained on, by the time since the step before",
    "step_s": "seconds since the step before",
    "wait_s": "longest wait in the queue of the step's calls, seconds",
    "compute_s": "longest time with the engine of the step's calls, seconds",
    "sampler_gap": "mean difference of trainer and sampler, nats a token",
    "sampler_gap_max": "largest difference of trainer and sampler, nats",
    "entropy": "estimated entropy of the policy, nats a token",
    "zero_advantages": "part of the data whose advantages are all zero",
    "kl_sample_train": "how far the policy has moved from the sampler, nats a token",
    "clip_fraction": "part of the tokens whose ratio is clipped",
    "ratio": "mean importance ratio",
    "e_frac_with_tokens": "part of the experts that got tokens",
    "e_frac_oversubscribed": "part of the experts with more tokens than their share",
    "e_max_violation": "how far the busiest expert is over its share",
}


def help_for(metric: str) -> str | None:
    return _HELP.get(metric)
