"""What POST /completions answers: whole, or chunk by chunk as tokens are drawn."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from tinkex.engine.messages import SampleResult
from tinkex.server.endpoints.draws import Draw, News, likeliest
from tinkex.server.endpoints.errors import openai_error
from tinkex.server.endpoints.event_stream import BEAT, DONE, Chunks, event
from tinkex.server.endpoints.openai.completion_logprobs import (
    CompletionLogprobs,
    Row,
    drawn_rows,
    prompt_rows,
)
from tinkex.server.endpoints.openai.usage import openai_usage
from tinkex.server.endpoints.sequence_text import SequenceText
from tinkex.server.endpoints.service import new_id
from tinkex.server.endpoints.targets import Target
from tinkex.server.refusals import Refusal
from tinkex.text.model_text import ModelText

if TYPE_CHECKING:
    from tinkex.server.endpoints.openai.completions import CompletionRequest


class Completion:
    """One answer in the making."""

    def __init__(
        self, asked: CompletionRequest, prompts: list[list[int]], text: ModelText, target: Target
    ) -> None:
        self._asked = asked
        self._prompts = prompts
        self._head: dict[str, Any] = {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.model,
        }
        self._chunks = Chunks(self._head)
        self._weights = {"tinkex": {"weights": target.told}}
        self._choices = [
            _Choice(asked, text, prompts[place // asked.n], place)
            for place in range(len(prompts) * asked.n)
        ]

    def whole(self, results: Sequence[SampleResult]) -> dict[str, Any]:
        choices = []
        for place, (result, sequence) in enumerate(_sequences(results)):
            tokens, logprobs = sequence.tokens.tolist(), sequence.logprobs.tolist()
            news = News(0, place, tokens, logprobs, likeliest(sequence.topk))
            choices.append(self._choices[place].part(news, sequence.stop_reason, result))
        usage = openai_usage(self._prompts, results)
        return {**self._head, "choices": choices, "usage": usage, **self._weights}

    async def events(self, draw: Draw) -> AsyncGenerator[bytes, None]:
        """Chunks until all sequences have ended, then what was used if that was asked for."""
        try:
            weights, chunk = self._weights, self._chunks.event
            async for news in draw.news():
                if news is None:
                    yield BEAT
                    continue
                choice = self._choices[news.prompt * self._asked.n + news.index]
                yield chunk({"choices": [choice.part(news)], **weights})
                weights = {}
            results = await draw.results()
            for place, (_, sequence) in enumerate(_sequences(results)):
                last = self._choices[place].part(News(0, place), sequence.stop_reason)
                yield chunk({"choices": [last], **weights})
            if self._asked.stream_options.include_usage:
                usage = openai_usage(self._prompts, results)
                yield chunk({"choices": [], "usage": usage})
            yield DONE
        except Refusal as refusal:
            yield event(openai_error(refusal))
        finally:
            draw.close()


class _Choice:
    """One sequence, part by part. The first part of one that echoes begins with its prompt."""

    def __init__(
        self, asked: CompletionRequest, text: ModelText, prompt: list[int], place: int
    ) -> None:
        show_special = not asked.skip_special_tokens
        self._asked = asked
        self._text = text
        self._prompt = prompt
        self._place = place
        self._begun = False
        self._scored = asked.logprobs is not None
        self._logprobs = CompletionLogprobs(text, asked.return_tokens_as_token_ids, show_special)
        voice = text.detokenizer(show_special, after=prompt)
        self._voice = SequenceText(voice, asked.stop_texts, asked.include_stop_str_in_output)

    def part(
        self, news: News, reason: str | None = None, result: SampleResult | None = None
    ) -> dict[str, Any]:
        """What these tokens add; with a `reason` the sequence ends with them."""
        text = self._voice.add(news.tokens) + (self._voice.end() if reason else "")
        rows = self._rows(news)
        values: dict[str, Any] = {"index": self._place, "finish_reason": reason}
        if not self._begun:
            self._begun = True
            if self._asked.return_token_ids:
                values["prompt_token_ids"] = self._prompt
            if self._asked.echo:
                text = self._text.decode(self._prompt, self._asked.skip_special_tokens) + text
                if result is not None and result.prompt_logprobs is not None:
                    rows = prompt_rows(self._prompt, result) + rows
        if self._asked.return_token_ids:
            values["token_ids"] = news.tokens
        values["text"] = text
        values["logprobs"] = self._logprobs.table(rows) if self._scored else None
        return values

    def _rows(self, news: News) -> list[Row]:
        return drawn_rows(news.tokens, news.logprobs, news.best) if self._scored else []


def _sequences(results: Sequence[SampleResult]) -> list[tuple[SampleResult, Any]]:
    return [(result, sequence) for result in results for sequence in result.sequences]
