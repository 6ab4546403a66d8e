"""Which engines there are, and what they know of a session."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from sessiond.domain.errors import (
    EngineNotFoundError,
    EngineUnreachableError,
    EngineWithoutConnectorError,
    NoEngineError,
)
from sessiond.domain.session import Presence, Session
from sessiond.service.compatibility import computes
from sessiond.service.headchoice import choose_head, is_gone, of_session
from sessiond.service.judge import storable_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.heads import Head
    from sessiond.domain.snapshot import Manifest
    from sessiond.engine.client import EngineClient
    from sessiond.service.blocking import Blocking
    from sessiond.store.store import Store


@dataclass(frozen=True)
class Located:
    """The head that has a session's conversation, and the live engine that wrote it."""

    engine: EngineInfo
    head: Head
    gone_from: frozenset[str] = frozenset()  #: live engines that have forgotten its KV since


@dataclass(frozen=True)
class Sight:
    """The live engines, and what they know of one session, at one moment."""

    live: tuple[EngineInfo, ...]  #: the newest first
    located: Located | None
    presence: Presence | None


@dataclass(frozen=True)
class Where:
    """Which engines may be chosen."""

    only: str = ""  #: the id of the one; empty: any
    avoid: frozenset[str] = frozenset()  #: ids of those that were just found not to answer

    def allows(self, engine: EngineInfo) -> bool:
        """Whether this one may."""
        return engine.engine_id not in self.avoid and self.only in ("", engine.engine_id)


ANYWHERE = Where()


class Engines:
    """The live engines of one store root."""

    def __init__(
        self,
        store: Store,
        client: EngineClient,
        blocking: Blocking,
        urls: Sequence[str],
        load: Callable[[str], int] = lambda _url: 0,
    ) -> None:
        """Make one; *load* tells how many requests an engine is known to work on."""
        self._load = load
        self._store = store
        self._client = client
        self._blocking = blocking
        self._urls = tuple(urls)

    async def live(self) -> list[EngineInfo]:
        """Return the engines whose lock is held, the newest first."""
        return await self._blocking(self._live)

    def see(self, session: Session, heads: Sequence[Head] | None = None) -> Sight:
        """Return what there is now, in the caller's thread; *heads*, if they were just read."""
        key = session.tenant, session.session_id
        heads, live = self._store.read_heads(*key) if heads is None else heads, self._live()
        located = newest_head(session, heads, live)
        return Sight(tuple(live), located, presence_of(session, located, live))

    async def get(self, engine_id: str) -> EngineInfo:
        """Return one live engine.

        :raises EngineNotFoundError: there is no live one of that id.
        """
        for engine in await self.live():
            if engine.engine_id == engine_id:
                return engine
        raise EngineNotFoundError

    async def choose(
        self,
        model: str,
        preferred: str = "",
        snapshot: Manifest | None = None,
        live: Sequence[EngineInfo] | None = None,
        *,
        loading: Manifest | None = None,
    ) -> EngineInfo:
        """Return the engine that should serve *model* (empty: any), *preferred* if it can.

        Of others, one that may load *loading* comes first, then the one with the least to do.

        A name is no identity: where no engine has it any more, one that could have computed
        *snapshot* serves the same under another.

        :param live: of these; by default of those that live now
        :raises NoEngineError: no engine runs, or none serves the model.
        :raises EngineWithoutConnectorError: only servers without our connector answer.
        :raises EngineUnreachableError: the engine did not tell its URL.
        """
        live = await self.live() if live is None else live
        fitting = [engine for engine in live if not model or engine.serves(model)]
        if not fitting and snapshot is not None:
            fitting = [engine for engine in live if computes(engine, snapshot)]
        if not fitting:
            await self._raise_none(model, live)
        engine = fitting[0]
        if len(fitting) > 1:
            engine = min(fitting, key=lambda one: self._rank(one, model, preferred, loading))
        if not engine.url:
            raise EngineUnreachableError(f"Engine {engine.engine_id} did not tell its URL.")
        return engine

    async def is_pending(self, model: str) -> bool:
        """Whether an engine that serves *model* (empty: any) is still taking its fingerprint."""
        live = await self.live()
        return any(each.is_pending and (not model or each.serves(model)) for each in live)

    async def strangers(self) -> list[str]:
        """Return the configured URLs that answer HTTP and belong to no engine of ours."""
        known = {_comparable(engine.url) for engine in await self.live()}
        unknown = [url for url in self._urls if _comparable(url) not in known]
        answers = await asyncio.gather(*(self._client.answers_http(url) for url in unknown))
        return [url for url, answered in zip(unknown, answers, strict=True) if answered]

    async def locate(self, session: Session) -> Located | None:
        """Return the newest head that a live engine wrote for the session."""
        return (await self._blocking(self.see, session)).located

    def _rank(
        self, engine: EngineInfo, model: str, preferred: str, loading: Manifest | None
    ) -> tuple[bool, bool, bool, bool, bool, int]:
        """Return what is in the way of choosing an engine, the weightiest first."""
        return (
            engine.draining,  # about to end, wherever the session's KV is
            _keeps_nothing(engine, model),
            engine.engine_id != preferred,
            not engine.url,
            loading is not None and not computes(engine, loading),
            self._load(engine.url),
        )

    def _live(self) -> list[EngineInfo]:
        return sorted(self._store.live_engines(), key=lambda engine: -engine.started_unix_s)

    async def _raise_none(self, model: str, live: Sequence[EngineInfo]) -> NoReturn:
        strangers = await self.strangers()
        if strangers:
            raise EngineWithoutConnectorError(
                f"The server at {strangers[0]} answers, but does not load sessiond's connector."
            )
        if live:
            adapters = (adapter.name for engine in live for adapter in engine.adapters)
            served = sorted({*(engine.model for engine in live), *adapters})
            names = ", ".join(map(repr, served))
            raise NoEngineError(f"No running engine serves {model!r}; they serve: {names}.")
        raise NoEngineError


def newest_head(
    session: Session, heads: Iterable[Head], live: Iterable[EngineInfo]
) -> Located | None:
    """Return the head of a live engine that has the conversation, as a rule the newest."""
    engines: dict[str, EngineInfo] = {engine.engine_id: engine for engine in live}
    known = of_session(session, (head for head in heads if head.engine_id in engines))
    off = {engine_id for engine_id, engine in engines.items() if engine.tier_off}
    head = choose_head(known, off)
    if head is None:
        return None
    since_unix_s = session.updated_unix_s
    gone = (one for one in known if is_gone(one) and one.updated_unix_s >= since_unix_s)
    return Located(engines[head.engine_id], head, frozenset(one.engine_id for one in gone))


def presence_of(
    session: Session, located: Located | None, live: Iterable[EngineInfo]
) -> Presence | None:
    """Return where the session's KV is believed to be."""
    resumed_on = session.resumed_on
    forgotten = located is not None and resumed_on in located.gone_from
    resumed_alive = not forgotten and any(engine.engine_id == resumed_on for engine in live)
    resumed_unix_s = session.updated_unix_s if resumed_alive else 0.0
    here = located is not None and located.engine.engine_id == resumed_on
    if located and (here or located.head.updated_unix_s >= resumed_unix_s):
        if is_gone(located.head):
            return None
        return _presence_of_head(located, resumed_unix_s if here else 0.0)
    if not resumed_alive:
        return None
    return Presence(
        engine_id=resumed_on,
        turns_in_flight=0,
        head_tokens=0,
        whole_chunk_tokens=0,
        head_digest="",
        idle_since_unix_s=resumed_unix_s,
    )


def _presence_of_head(located: Located, resumed_unix_s: float) -> Presence:
    branch, engine = located.head.main, located.engine
    return Presence(
        engine_id=engine.engine_id,
        turns_in_flight=located.head.turns_in_flight,
        head_tokens=len(branch.tokens) if branch else 0,
        whole_chunk_tokens=storable_tokens(branch, engine) if branch else 0,
        head_digest=branch.digest if branch else "",
        idle_since_unix_s=max(located.head.updated_unix_s, resumed_unix_s),
        adapter_digest=branch.adapter_digest if branch else None,
        last_turn=located.head.last_turn,
        unkept=located.head.unkept,
    )


def _keeps_nothing(engine: EngineInfo, model: str) -> bool:
    adapter = engine.adapter(model)
    return bool(engine.tier_off) or (adapter is not None and not adapter.digest)


def _comparable(url: str) -> str:
    return url.rstrip("/").replace("//localhost", "//127.0.0.1", 1)
