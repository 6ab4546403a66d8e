"""One agent of a soak: a thread that does what its script says, whatever comes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from sessiond.app.bench.soak import texts
from sessiond.app.bench.soak.comparison import Said
from sessiond.app.bench.soak.events import Heard
from sessiond.app.bench.soak.gate import Gate
from sessiond.app.bench.soak.ledger import Ledger, Promise
from sessiond.app.bench.soak.script import Kind, Step, Way, script
from sessiond.app.bench.soak.turns import Caller, RefusedError, Wanted
from sessiond.client import ApiError
from sessiond.testing.texts import Messages, continued

#: A conversation of more tokens is left alone, and the agent begins another one.
_FULL_TOKENS: Final = 1_000
_MOST_CONVERSATIONS: Final = 3
#: The servers were killed, or begin to be there again.
_AWAY: Final = frozenset(
    {
        "broken",
        "daemon_unreachable",
        "engine_lost",
        "engine_unreachable",
        "identity_pending",
        "no_engine",
        "unreachable",
    }
)
_PAUSE_S: Final = 1.0
_GONE: Final = "session_not_found"
_T = TypeVar("_T")


@dataclass
class Conversation:
    """One session as its agent sees it."""

    promise: Promise
    messages: Messages  #: of the next turn
    tokens: int = 0

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.promise.session_id


class SoakAgent:
    """Does one step after the other until the gate says that it is over.

    :ivar done: how many steps
    """

    def __init__(self, name: str, url: str, steps: Iterator[Step], ledger: Ledger) -> None:
        self._name, self._steps, self._ledger = name, steps, ledger
        self.done = 0
        self._caller = Caller(url)
        self._conversations: list[Conversation] = []
        self._begun = 0
        self._doing: dict[Kind, Callable[[Step], None]] = {
            Kind.TURN: self._turn,
            Kind.HANG_UP: self._hang_up,
            Kind.IDLE: self._idle,
            Kind.SUSPEND: self._suspend,
            Kind.RESUME: self._resume,
            Kind.FORK: self._fork,
            Kind.DELETE: self._delete,
        }

    def run(self, gate: Gate) -> None:
        """Work until the end; a step that finds no server is done when there is one again."""
        try:
            step = next(self._steps)
            while gate.passes():
                if self.act(step):
                    self.done += 1
                    step = next(self._steps)
        except Exception as error:  # noqa: BLE001 - whatever it is, the soak must not go on
            gate.fail(error)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of its connections."""
        self._caller.close()

    def act(self, step: Step) -> bool:
        """Do one step, and count it, or why it was refused; false: no server was there."""
        try:
            self._doing[step.kind](step)
        except (ApiError, RefusedError) as error:
            self._ledger.refuse(step.kind, error.code)
            if error.code in _AWAY:
                time.sleep(_PAUSE_S)
                return False
        return True

    def _turn(self, step: Step) -> None:
        self._take_turn(step, step.way, 0)

    def _hang_up(self, step: Step) -> None:
        self._take_turn(step, Way.STREAMED, step.hear_tokens)

    def _take_turn(self, step: Step, way: Way, hear_tokens: int) -> None:
        talk = self._open(step)
        wanted = Wanted(talk.session_id, way, talk.messages, step.reply_tokens, hear_tokens)
        heard = Heard()
        try:
            self._session_call(talk, lambda _: self._caller.turn(wanted, heard))
        finally:
            self._record(wanted, heard)
        if not heard.ended:
            self._ledger.count("hang_ups")
            return
        talk.tokens = len(heard.prompt) + len(heard.tokens)
        talk.messages = continued(talk.messages, "".join(heard.text), texts.question(step.text))

    def _record(self, wanted: Wanted, heard: Heard) -> None:
        if not heard.tokens and not heard.ended:
            return
        logprobs = heard.logprobs if len(heard.logprobs) == len(heard.tokens) else ()
        said = Said(
            session_id=wanted.session_id,
            way=wanted.way,
            prompt=heard.prompt,
            tokens=tuple(heard.tokens),
            logprobs=tuple(logprobs),
        )
        self._ledger.answered(said, heard.outcome if heard.ended else None)

    def _idle(self, step: Step) -> None:
        self._ledger.count("idles")
        time.sleep(step.idle_s)

    def _suspend(self, step: Step) -> None:
        talk = self._pick(step)
        if talk is None:
            return
        report = self._session_call(talk, self._caller.client.suspend)
        talk.promise.generation = max(talk.promise.generation, report.snapshot.generation)
        self._ledger.count("suspends_asked")

    def _resume(self, step: Step) -> None:
        talk = self._pick(step)
        if talk is not None:
            report = self._session_call(talk, self._caller.client.resume)
            self._ledger.resumed_as(report.outcome)

    def _fork(self, step: Step) -> None:
        source = self._pick(step)
        if source is None:
            return
        name = self._new_name()
        fork = self._session_call(source, lambda one: self._caller.client.fork(one, name))
        generation = fork.snapshot.generation if fork.snapshot else 0
        self._keep(Promise(name, fork.created_unix_s, generation), source.messages, source.tokens)
        self._ledger.count("forks")

    def _delete(self, step: Step) -> None:
        talk = self._pick(step)
        if talk is not None:
            self._remove(talk)

    def _remove(self, talk: Conversation) -> None:
        talk.promise.deleting = True
        try:
            self._caller.client.delete_session(talk.session_id)
        except ApiError as error:
            talk.promise.deleting = error.code in _AWAY or error.code == _GONE
            if error.code != _GONE:  # else it was done before, and not answered
                raise
        talk.promise.deleted = True
        self._conversations.remove(talk)
        self._ledger.count("deletes")

    def _open(self, step: Step) -> Conversation:
        """Return the conversation that a turn is for, a new one if there is none with room."""
        talk = self._pick(step)
        if talk is not None and talk.tokens < _FULL_TOKENS:
            return talk
        if len(self._conversations) >= _MOST_CONVERSATIONS:
            self._remove(self._conversations[0])
        name = self._new_name()
        made = self._caller.client.create_session(name, on_evicted=step.on_evicted)
        messages = texts.opening(name, step.text)
        self._ledger.count("sessions")
        return self._keep(Promise(name, made.created_unix_s), messages, 0)

    def _keep(self, promise: Promise, messages: Messages, tokens: int) -> Conversation:
        self._ledger.promise(promise)
        talk = Conversation(promise, messages, tokens)
        self._conversations.append(talk)
        return talk

    def _pick(self, step: Step) -> Conversation | None:
        if not self._conversations:
            return None
        return self._conversations[int(step.place * len(self._conversations))]

    def _new_name(self) -> str:
        self._begun += 1
        return f"{self._name}-{self._begun}"

    def _session_call(self, talk: Conversation, call: Callable[[str], _T]) -> _T:
        try:
            return call(talk.session_id)
        except (ApiError, RefusedError) as error:
            if error.code == _GONE:
                self._ledger.lose(talk.session_id, "a call was answered session_not_found")
            raise


def agents(count: int, seed: int, url: str, ledger: Ledger) -> list[SoakAgent]:
    """Return so many agents, each with its own script."""
    return [
        SoakAgent(f"soak-{number}", url, script(seed, number), ledger) for number in range(count)
    ]


def started(crew: list[SoakAgent], gate: Gate) -> list[threading.Thread]:
    """Start every agent in a thread of its own."""
    threads = [threading.Thread(target=one.run, args=(gate,), daemon=True) for one in crew]
    for thread in threads:
        thread.start()
    return threads
