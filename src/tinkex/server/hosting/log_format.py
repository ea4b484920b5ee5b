"""What a server writes to stderr: lines for people, or one JSON object per line for machines.

Sets up logging for the whole process; only the command that owns the process calls it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]


class JsonLines(logging.Formatter):
    """One object per record: time, level, logger, message, the record's `facts` by their own names,
    and the error where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(log_format: LogFormat, *, quiet: bool = False) -> None:
    """Log to stderr in the given form; `quiet` and libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tinkex").setLevel(logging.WARNING if quiet else logging.INFO)
