"""Predicts whether the engine will accept a request, so that its stream can begin at once.

A refusal needs a status of its own, so a stream whose request the engine might refuse waits for
the engine's check. This module only asks whether it might; the engine's check decides.
"""

from __future__ import annotations

from tinkex.engine.messages import Ready, Sample, SamplingControls

_NONE = SamplingControls()


def is_sure(command: Sample, facts: Ready | None) -> bool:
    """Whether an engine of these facts takes this sample, its weights being loaded."""
    return (
        facts is not None
        and command.grammar is None
        and command.thinking is None
        and command.controls == _NONE
        and not command.topk_sample_logprobs
        and not any(isinstance(stop, int) for stop in command.params.stop or ())
        and len(command.prompt) > 0
        and int(command.prompt.max()) < facts.vocab_size
        and command.room(facts.max_context) >= 0
    )
