"""Renders REFERENCE.md from the code, so that it cannot tell anything else.

``python -m sessiond.testing.reference > REFERENCE.md`` writes it; a test compares the two.
"""

from __future__ import annotations

import json
import sys
import tempfile
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import PydanticUndefined

from sessiond.api import problems
from sessiond.api.gateway_docs import HEADERS
from sessiond.api.metrics import Metrics
from sessiond.app.config import ENV_PREFIX, FILE_VARIABLE, Settings
from sessiond.app.main import COMMANDS
from sessiond.app.wiring import open_daemon
from sessiond.connector.settings import SETTING_MEANINGS, ConnectorSettings
from sessiond.domain import errors
from sessiond.domain.architectures import KV_KINDS
from sessiond.domain.errors import SessiondError
from sessiond.domain.gateway import FIELD_RULES
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.reasons import EXPLANATIONS, Reason
from sessiond.domain.session import OnEvicted
from sessiond_cli.exits import MEANINGS, STATUS
from sessiond_cli.main import app as sessionctl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic.fields import FieldInfo

_HEAD: Final = """\
# Reference

Made from the code by `python -m sessiond.testing.reference > REFERENCE.md`; do not edit it.
README.md is where to begin.
"""
_SETTINGS: Final = f"""\
Each is an environment variable of `sessiond serve`, and a key of the TOML file that
`{FILE_VARIABLE}` names (without the prefix, in lower case). Environment comes before file,
`--host`, `--port` and `--store-root` before both.
"""
_ENGINE: Final = """\
`sessiond engine` reads `SESSIOND_STORE_ROOT` and `SESSIOND_KEY_FILE`, which must be the same
as the daemon's, and for its end `SESSIOND_URL` (the daemon), `SESSIOND_TOKEN` (an operator's) and
`SESSIOND_DRAIN_DEADLINE_S`; its own options are in `sessiond engine --help`.
"""
_CONNECTOR: Final = """\
`sessiond engine --connector-setting NAME=VALUE` gives them, or the object `sessiond` in vLLM's
`kv_connector_extra_config`.
"""
_ERRORS: Final = """\
REST answers carry the code in a problem document (RFC 9457) with `detail`, `hint` and
`retryable`; `sessionctl --json` prints it as a line on stderr with `message` and `hint`. Codes
without an HTTP status are `sessionctl`'s own.
"""
_REASONS: Final = """\
Why KV was not kept or not used again. They are in the answers of suspend, resume, probe and
ticket, in events, in logs and in metrics.
"""
_KINDS: Final = """\
The classes of vLLM that keep KV, and in brackets what is unusual about them. golden: on the real
engine, tokens after suspend, SIGKILL and resume were those without interruption. refused: an engine
with such a group does not start with sessiond, nor one with a class or a form that is not listed.
`GET /v1/engines/ENGINE` shows an engine's own.
"""
_ROUTES: Final = """\
The daemon describes them with all fields and examples at `/docs` and `/openapi.json`. All
below `/v1` need `Authorization: Bearer TOKEN` if tokens are configured.
"""
_GATEWAY: Final = """\
Chat completions, completions, responses and models, as vLLM serves them. `X-Session-Id`, or the
body's `session_id`, names the session; a new id, and that of a deleted one, begins a session. With
`X-Sessiond-Continue: 1` a chat completion goes on with the session's exact tokens, where they have
the text of its messages. Of the request's headers only `Content-Type`, `Accept`, `User-Agent`,
`X-Request-Id`, `Endpoint-Load-Metrics-Format` and those of tracing reach the engine.

A stream ends with a comment, `: sessiond {"plan", "outcome", "tokens_total", "tokens_restored",
"tokens_disk", "reason", "session_id", "turn_id"}`, which clients pass over. What is not proven to
be of this turn is `unknown`. The `kv_transfer_params` of an answer is null, as without a ticket;
only the last event of a streamed response still has them. A stream without its end is a broken one.

vLLM's errors pass as they are. Those of sessiond are OpenAI's `error` object with the type
`sessiond_error`, and the fields of a problem document beside it; `x-should-retry` tells OpenAI's
clients whether to repeat. A model that no engine ever served is the engine's own error; one that
just went away is `no_engine`. `previous_response_id` is remembered by one engine, in memory, and
only if vLLM runs with `VLLM_ENABLE_RESPONSES_API_STORE=1`: when that engine is gone, the error is
`response_lost`.
"""
_DEFAULTS_IN_WORDS: Final = {"store_root": "`~/.local/share/sessiond/store`"}


def render() -> str:
    """Return the whole file."""
    sections = (
        ("Settings", _SETTINGS, _settings()),
        ("Settings of the connector", _CONNECTOR, _connector_settings()),
        ("Commands of sessiond", _ENGINE, _daemon_commands()),
        ("Commands of sessionctl", "", _commands()),
        ("Exit statuses of sessionctl", "", _exit_statuses()),
        ("Error codes", _ERRORS, _errors()),
        ("Reason codes", _REASONS, _reasons()),
        ("Kinds of KV groups", _KINDS, _kinds()),
        ("REST routes", _ROUTES, _routes()),
        ("Gateway", _GATEWAY, _gateway()),
        ("Metrics", "", _metrics()),
    )
    parts = [_HEAD]
    for title, words, table in sections:
        parts += [f"## {title}\n", *([words] if words else []), table]
    return "\n".join(parts)


def error_classes() -> Iterator[type[SessiondError]]:
    """Yield every class of the error tree in the order of its drawing."""

    def walk(root: type[SessiondError]) -> Iterator[type[SessiondError]]:
        yield root
        for child in root.__subclasses__():
            if child.__module__ == errors.__name__:
                yield from walk(child)

    yield from walk(SessiondError)


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command of ``sessionctl`` with its parameters, and what it does."""
    yield from _walk(typer.main.get_command(sessionctl), "sessionctl")


def routes() -> list[tuple[str, str, str]]:
    """Return the method, the path and the summary of every route."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = Settings(
            store_root=home / "store",
            key_file=home / "server.key",
            registry_url=f"sqlite:///{home / 'registry.db'}",
        )
        with open_daemon(settings) as app:
            paths = app.openapi()["paths"]
    return [
        (method.upper(), path, operation["description"].partition("\n")[0])
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


def _settings() -> str:
    rows = [
        (
            f"`{ENV_PREFIX}{name.upper()}`",
            _type_name(field.annotation),
            _default(name, field),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]
    return _table(("name", "type", "default", "meaning"), rows)


def _connector_settings() -> str:
    defaults = ConnectorSettings(Path("/"), Path("/"))
    rows = []
    for setting in fields(ConnectorSettings):
        given = setting.default not in (MISSING, None)
        default = f"`{json.dumps(getattr(defaults, setting.name))}`" if given else ""
        rows.append((f"`{setting.name}`", default, SETTING_MEANINGS[setting.name]))
    return _table(("name", "default", "meaning"), rows)


def _type_name(annotation: object) -> str:
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is tuple:
        return "list"
    if origin is dict:
        return "object"
    kind = parts[0] if parts else annotation
    names = {
        "Path": "path",
        "str": "text",
        "int": "integer",
        "float": "number",
        "bool": "true or false",
        "OnEvicted": ", ".join(OnEvicted),
        "PlanPolicy": ", ".join(PlanPolicy),
    }
    return names[getattr(kind, "__name__", "")]


def _default(name: str, field: FieldInfo) -> str:
    if name in _DEFAULTS_IN_WORDS:
        return _DEFAULTS_IN_WORDS[name]
    default: Any = field.get_default(call_default_factory=True)
    assert default is not PydanticUndefined
    return f"`{default}`" if default not in ("", (), {}, None) else "-"


def _daemon_commands() -> str:
    rows = [
        (f"`sessiond {name}`", f"{purpose[0].upper()}{purpose[1:]}.", f"`sessiond[{extra}]`")
        for name, (_, purpose, extra) in COMMANDS.items()
    ]
    return _table(("command", "what it does", "needs"), rows)


def _gateway() -> str:
    headers = [(f"`{name}`", meaning) for name, meaning in HEADERS.items()]
    rules = [(f"`{name}`", rule) for name, rule in FIELD_RULES.items()]
    tables = (
        _table(("header of an answer", "meaning"), headers),
        _table(("field of a body", "what becomes of it; all others pass as they are"), rules),
    )
    return "\n".join(tables)


def _commands() -> str:
    return _table(("command", "what it does"), [(f"`{name}`", what) for name, what in commands()])


def _walk(command: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - the parser's class moves
    children = getattr(command, "commands", {})
    for name, child in children.items():
        yield from _walk(child, f"{path} {name}")
    if not children:
        words = [_shown(parameter) for parameter in command.params]
        yield " ".join((path, *words)), command.help.partition("\n")[0]


def _shown(parameter: Any) -> str:  # noqa: ANN401 - the same
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    names = "/".join((*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    return f"[{names}{value}]"


def _exit_statuses() -> str:
    rows = [
        (
            str(status.value),
            meaning,
            ", ".join(f"`{code}`" for code, found in STATUS.items() if found is status),
        )
        for status, meaning in MEANINGS.items()
    ]
    return _table(("status", "meaning", "error codes"), rows)


def _errors() -> str:
    rows = [_error_row(kind.code, kind) for kind in error_classes()]
    told = {kind.code for kind in error_classes()}
    rows += [_error_row(code, None) for code in STATUS if code not in told]
    return _table(("code", "HTTP", "exit", "repeat", "meaning", "hint"), rows)


def _error_row(code: str, kind: type[SessiondError] | None) -> tuple[str, ...]:
    http = problems.STATUS.get(code)
    return (
        f"`{code}`",
        str(int(http)) if http else "-",
        str(STATUS[code].value),
        "yes" if (kind.retryable if kind else code in _WORTH_REPEATING) else "no",
        kind().message if kind else _OTHER_CODES[code],
        (kind.hint if kind else "") or "-",
    )


_WORTH_REPEATING: Final = {"lease_expired", "daemon_unreachable", "purge_incomplete"}
_OTHER_CODES: Final = {
    "lease_expired": "The daemon that ran the operation went away before its end.",
    "usage": "The command line is not valid.",
    "interrupted": "Interrupted, or answered with no.",
    "daemon_unreachable": "No daemon answers at the URL.",
    "not_sessiond": "What answers at the URL is not sessiond.",
    "purge_incomplete": "Some of the sessions could not be deleted.",
    "damage_found": "The store has damaged files; none of them is ever loaded.",
}


def _reasons() -> str:
    rows = [
        (f"`{reason.value}`", EXPLANATIONS[reason].sentence, EXPLANATIONS[reason].hint)
        for reason in Reason
    ]
    return _table(("code", "meaning", "what to do"), rows)


def _kinds() -> str:
    rows = [
        (f"`{known.kind}`", known.what, known.support.value, known.sentence) for known in KV_KINDS
    ]
    return _table(("kind", "what it is", "support", "why"), rows)


def _routes() -> str:
    rows = [(f"`{method} {path}`", summary) for method, path, summary in routes()]
    return _table(("route", "what it does"), rows)


def _metrics() -> str:
    families = text_string_to_metric_families(Metrics().exposition(0).decode())
    rows = [
        # The parser strips what every counter's samples end with.
        (f"`{one.name}{'_total' * (one.type == 'counter')}`", one.type, one.documentation)
        for one in families
    ]
    return _table(("name", "type", "meaning"), rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(titles), _row(["---"] * len(titles)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(render())
