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

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._keeps_spaces: dict[str, bool] = {}  # by engine id

    async def find(
        self, engine: EngineInfo, heads: Sequence[TokenIds[int]], chat: Chat
    ) -> Continuation:
        """Return the prompt that continues the first of *heads* that *chat* goes on from.

        It has the text of the messages as the engine renders them, character for character, so
        it changes nothing but which tokens stand for that text. Nothing is raised: a turn can
        always take the ordinary way.
        """
        if not chat.is_text:
            return _refused(Reason.NOT_TEXT)
        if not heads:
            return _refused(Reason.NOT_FAITHFUL, "nothing is known of the session's tokens")
        try:
            return await self._find(engine, heads, chat)
        except UnavailableError as error:
            return _refused(Reason.NOT_FAITHFUL, f"not rendered: {error.message}")

    async def _find(
        self, engine: EngineInfo, heads: Sequence[TokenIds[int]], chat: Chat
    ) -> Continuation:
        tokenizer = EngineTokenizer(self._client, engine.url, engine.model)
        rendered = await tokenizer.render(chat)
        limit = engine.max_model_tokens - _REPLY_TOKENS
        found = [continue_head(head, rendered, limit) for head in heads]
        proven = [await self._proven(engine, tokenizer, one, rendered) for one in found]
        return next((one for one in proven if one.cause is None), proven[0])

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
            cause = Cause(Reason.NOT_FAITHFUL, "the tokenizer does not show texts as they are")
            return replace(found, prompt=None, cause=cause)
        continued, plain = await asyncio.gather(
            tokenizer.text(found.prompt), tokenizer.text(rendered)
        )
        cause_found = difference(continued, plain)
        return replace(found, prompt=None, cause=cause_found) if cause_found else found


def _refused(reason: Reason, detail: str = "") -> Continuation:
    return Continuation(0, 0, 0, cause=Cause(reason, detail))
