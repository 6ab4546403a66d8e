"""Token-faithful continuation: the head's exact tokens and what the messages add to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from sessiond.domain.continuation import Continuation, continue_head, difference
from sessiond.domain.errors import UnavailableError
from sessiond.domain.reasons import Cause, Reason
from sessiond.engine.tokenizer import EngineTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.continuation import Chat
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.tokens import TokenIds
    from sessiond.engine.client import EngineClient

#: Of a prompt, so that at least one token can be sampled after it.
_REPLY_TOKENS = 1


class Continuer:
    """Finds prompts that continue a session token for token, and proves that they may be sent."""

    def __init__(self, client: EngineClient, deadline_s: float) -> None:
        """Find with the engines that *client* reaches; *deadline_s* is for all of one prompt."""
        self._client = client
        self._deadline_s = deadline_s
        self._keeps_spaces: dict[str, bool] = {}  # by engine id

    async def find(
        self, engine: EngineInfo, heads: Sequence[TokenIds[int]], chat: Chat
    ) -> Continuation:
        """Return the prompt that continues the first of *heads* that *chat* goes on from.

        It has the text of the messages as the engine renders them, character for character, so
        it changes nothing but which tokens stand for that text. Nothing is raised: a turn can
        always take the ordinary way.
        """
        unfit = chat.unfit_cause
        if unfit is not None:
            return Continuation(0, 0, 0, cause=unfit)
        if not heads:
            return _refused("nothing is known of the session's tokens")
        try:
            # The turn waits for it: several calls together get no more time than one.
            async with asyncio.timeout(self._deadline_s):
                return await self._find(engine, heads, chat)
        except TimeoutError:
            return _refused(f"the engine did not render it within {self._deadline_s:g} s")
        except UnavailableError as error:
            return _refused(f"not rendered: {error.message}")

    async def _find(
        self, engine: EngineInfo, heads: Sequence[TokenIds[int]], chat: Chat
    ) -> Continuation:
        tokenizer = EngineTokenizer(self._client, engine.url, engine.model)
        rendered = await tokenizer.render(chat)
        limit = engine.max_model_tokens - _REPLY_TOKENS
        refused: list[Continuation] = []
        for head in heads:
            found = continue_head(head, rendered, limit)
            try:
                proven = await self._proven(engine, tokenizer, found, rendered)
            except UnavailableError as error:  # such as tokens of another vocabulary
                proven = _without_prompt(found, f"not proven: {error.message}")
            if proven.cause is None:
                return proven
            refused.append(proven)
        return refused[0]

    async def _proven(
        self,
        engine: EngineInfo,
        tokenizer: EngineTokenizer,
        found: Continuation,
        rendered: TokenIds[int],
    ) -> Continuation:
        """Return *found*, without its prompt if that has not the text of *rendered*."""
        if found.prompt is None:
            return found
        if engine.engine_id not in self._keeps_spaces:
            self._keeps_spaces[engine.engine_id] = await tokenizer.keeps_spaces()
        if not self._keeps_spaces[engine.engine_id]:
            return _without_prompt(found, "the tokenizer does not show texts as they are")
        continued, plain = await asyncio.gather(
            tokenizer.text(found.prompt), tokenizer.text(rendered)
        )
        cause_found = difference(continued, plain)
        return replace(found, prompt=None, cause=cause_found) if cause_found else found


def _without_prompt(found: Continuation, detail: str) -> Continuation:
    return replace(found, prompt=None, cause=Cause(Reason.NOT_FAITHFUL, detail))


def _refused(detail: str) -> Continuation:
    return Continuation(0, 0, 0, cause=Cause(Reason.NOT_FAITHFUL, detail))
