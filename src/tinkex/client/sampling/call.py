"""One sample request: its arguments checked and encoded, its answer compared with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tinkex.client import arguments
from tinkex.client.session.polling import ResultKind
from tinkex.types import ModelInput, SampleResponse, SamplingParams, TensorData
from tinkex.wire.chunking import prompt_bytes
from tinkex.wire.json import encode_sample, sample_response_from_json
from tinkex.wire.protobuf import decode_sample_response

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder

# Encoding a larger prompt would hold up everything else on the loop.
ENCODE_OFF_LOOP_BYTES = 256 * 1024

_SCORING = SamplingParams(max_tokens=1)


@dataclass(frozen=True, slots=True)
class SampleCall:
    prompt: ModelInput  # to draw after
    num_samples: int  # of the one prompt
    sampling_params: SamplingParams  # how to draw, and when to stop
    include_prompt_logprobs: bool  # whether the prompt's own are told
    topk_prompt_logprobs: int  # likeliest tokens told of each place of the prompt
    topk_sample_logprobs: int  # the same of each place of a sample
    target_prompt_logprobs: TensorData | None  # tokens whose logprobs are told
    prompt_alt_tokens_k: int  # alternatives drawn for each place of the prompt
    prompt_logprobs_last_n: int | None  # only of its last tokens; None: all
    size: int  # bytes it is expected to take on the wire

    @classmethod
    def checked(
        cls,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool,
        topk_prompt_logprobs: int,
        topk_sample_logprobs: int,
        target_prompt_logprobs: TensorData | None,
        prompt_alt_tokens_k: int,
        prompt_logprobs_last_n: int | None,
    ) -> SampleCall:
        """Raises for anything the server would have to refuse."""
        prompt = arguments.checked_prompt(prompt)
        params = arguments.as_sampling_params(sampling_params)
        samples, topk_prompt, topk_sample, alternatives = arguments.checked_counts(
            num_samples,
            topk_prompt_logprobs=topk_prompt_logprobs,
            topk_sample_logprobs=topk_sample_logprobs,
            prompt_alt_tokens_k=prompt_alt_tokens_k,
        )
        target = arguments.checked_target(prompt, target_prompt_logprobs)
        last_n = arguments.checked_last_n(include_prompt_logprobs, prompt_logprobs_last_n)
        return cls(
            prompt,
            samples,
            params,
            include_prompt_logprobs,
            topk_prompt,
            topk_sample,
            target,
            alternatives,
            last_n,
            prompt_bytes(prompt),
        )

    @classmethod
    def scoring(cls, prompt: ModelInput, last_n: int | None) -> SampleCall:
        """The call behind ``compute_logprobs``: one token, and the prompt's logprobs."""
        return cls.checked(prompt, 1, _SCORING, True, 0, 0, None, 0, last_n)

    async def encode(
        self,
        holder: InternalClientHolder,
        sampling_session_id: str,
        seq_id: int,
        record_stability_info: bool,
    ) -> bytes:
        def work() -> bytes:
            return encode_sample(
                prompt=self.prompt,
                sampling_params=self.sampling_params,
                num_samples=self.num_samples,
                sampling_session_id=sampling_session_id,
                seq_id=seq_id,
                prompt_logprobs=self.include_prompt_logprobs,
                topk_prompt_logprobs=self.topk_prompt_logprobs,
                topk_sample_logprobs=self.topk_sample_logprobs,
                target_prompt_logprobs=self.target_prompt_logprobs,
                prompt_alt_tokens_k=self.prompt_alt_tokens_k,
                prompt_logprobs_last_n=self.prompt_logprobs_last_n,
                record_stability_info=record_stability_info,
            )

        if self.size <= ENCODE_OFF_LOOP_BYTES:
            return work()
        return await holder.encode(work)

    def check_honoured(self, response: SampleResponse) -> None:
        """RuntimeError when a server that does not know a request field ignored it."""
        if self.prompt_alt_tokens_k > 0 and response.prompt_alt_tokens is None:
            raise RuntimeError(
                "The server ignored prompt_alt_tokens_k: it does not support alternative tokens."
            )
        scored = response.prompt_logprobs_np
        if self.prompt_logprobs_last_n is None or scored is None:
            return
        before = scored[: max(0, len(scored) - self.prompt_logprobs_last_n)]
        if not bool(np.isnan(before).all()):
            raise RuntimeError(
                "The server ignored prompt_logprobs_last_n: it scored tokens before the suffix."
            )


def result_kind(sequence_ids: list[str]) -> ResultKind[SampleResponse]:
    """How the result of a sample is read, each sequence stamped with its id."""
    return ResultKind(
        "Sample",
        lambda value: sample_response_from_json(value, sequence_ids),
        lambda body: decode_sample_response(body, sequence_ids),
    )
