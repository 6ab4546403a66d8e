"""``sessiond bench gateway``: what a turn takes longer through the gateway than without it.

The same prompt is asked for in three ways, one after the other, with its KV in VRAM: directly;
directly with a ticket, which is the engine's own part in it; and through the gateway, as a turn
of a session that has a snapshot. Which way is the first rotates. Then many streams at once run
directly and through the gateway, round after round.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from sessiond.app.bench.arrivals import UnexpectedPathError
from sessiond.app.bench.calls import Call, Caller, Timed, stream_at_once
from sessiond.app.bench.figures import added, median_ratio, percentile, rotated
from sessiond.app.bench.given import GatewayOptions, Servers, serving
from sessiond.app.bench.machine import describe_machine, versions
from sessiond.app.trials import Say
from sessiond.domain.ids import new_hex_id
from sessiond.testing.texts import opening

DIRECT, TICKETED, THROUGH = "direct", "ticketed", "through"
_WAYS = (DIRECT, TICKETED, THROUGH)
WHOLE, FIRST, LAST = "whole_turn", "first_event", "last_event"
_REPLY_TOKENS = 4
_STREAM_PROMPT_TOKENS = 64
_TIMEOUT_S = 300.0
_WARM = "warm"


def measure_gateway(options: GatewayOptions, say: Say) -> dict[str, Any]:
    """Start an engine and a daemon if none is given, measure, and return the report.

    :raises ConfigurationError: the options cannot be used.
    :raises UnexpectedPathError: a turn was not served as it should have been.
    """
    options.require_possible()
    with serving(options, say) as servers, closing(_Bench(servers, options)) as bench:
        bench.begin()
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}: turns")
            bench.turns(number)
            say(f"round {number + 1} of {options.rounds}: streams")
            bench.streams(number)
    return {
        **summary(bench.took_s, bench.tokens_s),
        "model": servers.model,
        "reply_tokens": _REPLY_TOKENS,
        **{name: getattr(options, name) for name in ("context_tokens", "streams", "stream_tokens")},
        "rounds": options.rounds,
        "turns": options.turns * options.rounds,
        "machine": describe_machine(Path.cwd()),
        "versions": versions(),
    }


def summary(
    took_s: Mapping[str, Mapping[str, list[float]]], tokens_s: Mapping[str, list[float]]
) -> dict[str, Any]:
    """Return what was found.

    :param took_s: the seconds of each kind, by way, pair by pair
    :param tokens_s: tokens per second of all streams, by way, round by round
    """
    through = {kind: added(ways[DIRECT], ways[THROUGH]) for kind, ways in took_s.items()}
    engine = {kind: added(ways[DIRECT], ways[TICKETED]) for kind, ways in took_s.items()}
    ratios = [over / under for over, under in zip(tokens_s[THROUGH], tokens_s[DIRECT], strict=True)]
    return {
        "kind": "gateway",
        # The worst of a whole answer, of the first event and of the last one.
        "added_ms_median": max(one.median_ms for one in through.values()),
        "throughput_ratio": median_ratio(tokens_s[THROUGH], tokens_s[DIRECT]),
        "added_ms": {kind: asdict(one) for kind, one in through.items()},
        "added_ms_by_engine": {kind: asdict(one) for kind, one in engine.items()},
        "took_ms_median": {
            kind: {way: percentile(values, 50) * 1e3 for way, values in ways.items()}
            for kind, ways in took_s.items()
        },
        "throughput_ratio_least": min(ratios),
        "throughput_ratio_most": max(ratios),
        "tokens_per_s": dict(tokens_s),
    }


class _Bench:
    def __init__(self, servers: Servers, options: GatewayOptions) -> None:
        self.took_s: dict[str, dict[str, list[float]]] = {
            kind: defaultdict(list) for kind in (WHOLE, FIRST, LAST)
        }
        self.tokens_s: dict[str, list[float]] = {DIRECT: [], THROUGH: []}
        self._servers, self._options = servers, options
        self._run = new_hex_id()[:8]
        self._session = f"bench-{self._run}"
        self._prompt = list(opening(self._session, options.context_tokens))
        self._daemon = httpx.Client(
            base_url=servers.daemon.url, headers=servers.daemon.headers, timeout=_TIMEOUT_S
        )
        gateway = servers.daemon.with_headers(x_session_id=self._session)
        targets = {DIRECT: servers.engine, TICKETED: servers.engine, THROUGH: gateway}
        self._callers = {way: Caller(target) for way, target in targets.items()}

    def begin(self) -> None:
        """Bring the prompts' KV into VRAM, in all ways, and suspend the session once."""
        self._call(THROUGH, stream=False)
        suspend = f"/v1/sessions/{self._session}/suspend"
        self._daemon.post(suspend, params={"wait": _TIMEOUT_S}).raise_for_status()
        for way in _WAYS:
            for stream in (False, True):
                self._call(way, stream=stream)
        for way in (DIRECT, THROUGH):
            asyncio.run(self._stream(way))

    def turns(self, number: int) -> None:
        """Take the turns of one round."""
        for turn in range(self._options.turns):
            for way in rotated(_WAYS, number + turn):
                self.took_s[WHOLE][way].append(self._call(way, stream=False).last_s)
            for way in rotated(_WAYS, number + turn):
                timed = self._call(way, stream=True)
                self.took_s[FIRST][way].append(timed.first_s)
                self.took_s[LAST][way].append(timed.last_s)

    def streams(self, number: int) -> None:
        """Have the streams of one round, in both ways."""
        for way in rotated((DIRECT, THROUGH), number):
            begin_s = time.perf_counter()
            tokens = asyncio.run(self._stream(way))
            self.tokens_s[way].append(tokens / (time.perf_counter() - begin_s))

    def close(self) -> None:
        """Delete the sessions."""
        for name in (self._session, *map(self._stream_session, range(self._options.streams))):
            self._daemon.delete(f"/v1/sessions/{name}")
        self._daemon.close()
        for caller in self._callers.values():
            caller.close()

    def _call(self, way: str, *, stream: bool) -> Timed:
        body: dict[str, Any] = {**self._body(self._prompt, _REPLY_TOKENS), "stream": stream}
        if way == DIRECT:
            body["cache_salt"] = self._run
        if way == TICKETED:
            answer = self._daemon.post(f"/v1/sessions/{self._session}/ticket")
            ticket = answer.raise_for_status().json()
            body |= {name: ticket[name] for name in ("cache_salt", "kv_transfer_params")}
        timed = self._callers[way].call(body)
        if way == THROUGH and self.took_s[LAST] and timed.plan != _WARM:
            raise UnexpectedPathError(f"A turn that should be warm was planned as {timed.plan!r}.")
        return timed

    async def _stream(self, way: str) -> int:
        options, calls = self._options, list[Call]()
        target = self._servers.daemon if way == THROUGH else self._servers.engine
        for place in range(options.streams):
            name = self._stream_session(place)
            body = self._body(list(opening(name, _STREAM_PROMPT_TOKENS)), options.stream_tokens)
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            if way == DIRECT:
                calls.append((target.headers, body | {"cache_salt": self._run}))
            else:
                calls.append((target.with_headers(x_session_id=name).headers, body))
        return await stream_at_once(target.url, calls)

    def _body(self, messages: list[dict[str, str]], tokens: int) -> dict[str, Any]:
        return {
            "model": self._servers.model,
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    def _stream_session(self, place: int) -> str:
        return f"{self._session}-{place}"
