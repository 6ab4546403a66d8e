"""Log lines for people, and as JSON objects for those who collect them."""

from __future__ import annotations

import json
import logging
from typing import Any

from uvicorn.config import LOGGING_CONFIG


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time_unix_s``, ``level``, ``logger``, ``message``, ``trace``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        line: dict[str, Any] = {
            "time_unix_s": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def text_log_config(level: str) -> dict[str, Any]:
    """Return the logging configuration that writes ours as Uvicorn writes its own, to stderr."""
    ours = {"handlers": ["default"], "level": level.upper(), "propagate": False}
    return {**LOGGING_CONFIG, "loggers": {**LOGGING_CONFIG["loggers"], "sessiond": ours}}


def json_log_config(level: str) -> dict[str, Any]:
    """Return the logging configuration that writes every record as JSON to stderr."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
    }
