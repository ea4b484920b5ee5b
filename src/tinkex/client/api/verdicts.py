"""What an unsuccessful answer means: the error it becomes, and the notes it carries."""

from __future__ import annotations

import logging

from tinkex.client.api.credentials_source import ways_to_a_key
from tinkex.client.api.retry import retry_delay_from_headers
from tinkex.client.error_details import RequestInfo, ResponseInfo
from tinkex.client.errors import APIStatusError, AuthenticationError, redirect_error, status_error
from tinkex.client.http import HttpResponse
from tinkex.client.settings.config import Config
from tinkex.wire import limits

logger = logging.getLogger("tinkex")


def error_of(
    response: HttpResponse, request: RequestInfo, config: Config, *, has_no_key: bool
) -> APIStatusError:
    """The typed error of an answer, with the delay the server asks for."""
    content = response.content
    described = ResponseInfo.describe(response.status, response.headers, request, content)
    error = redirect_error(described) if response.status < 400 else status_error(described, content)
    if isinstance(error, AuthenticationError) and has_no_key:
        message = f"No API key, and this server has keys of its own. {ways_to_a_key(config)}"
        error = AuthenticationError(message, response=described, body=error.body)
    error.retry_after = retry_delay_from_headers(response.headers, config.timings.retry_after_max)
    return error


def log_deprecation(response: HttpResponse) -> None:
    note = response.headers.get(limits.HEADER_DEPRECATION_NOTE)
    if note:
        severe = response.headers.get(limits.HEADER_DEPRECATION_LEVEL) == "error"
        logger.log(logging.ERROR if severe else logging.WARNING, "%s", note)
