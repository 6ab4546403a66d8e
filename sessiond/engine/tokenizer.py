"""An engine's own tokenizer and chat template: it renders as it does for a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import EngineRefusedError
from sessiond.domain.tokens import TokenIds, token_ids

if TYPE_CHECKING:
    from sessiond.domain.continuation import Chat
    from sessiond.engine.client import EngineClient

_DEADLINE_S: Final = 10.0


class EngineTokenizer:
    """Calls one engine."""

    def __init__(self, client: EngineClient, url: str, model: str) -> None:
        self._client = client
        self._url = url
        self._model = model

    async def render(self, chat: Chat) -> TokenIds[int]:
        """Return the prompt that a chat completion with these fields gets.

        :raises EngineRefusedError: the engine cannot render it.
        :raises UnavailableError: the engine does not answer.
        """
        asked = {
            "messages": list(chat.messages),
            "tools": chat.tools,
            "chat_template_kwargs": chat.chat_template_kwargs,
            "add_generation_prompt": True,
        }
        return await self._tokenize({name: one for name, one in asked.items() if one is not None})

    async def text(self, tokens: Sequence[int]) -> str:
        """Return the text of *tokens*, special ones included.

        :raises UnavailableError: the engine does not answer.
        """
        answer = await self._call("detokenize", {"tokens": list(tokens)})
        text = answer.get("prompt")
        if not isinstance(text, str):
            raise EngineRefusedError("The engine's answer has no usable 'prompt'.")
        return text

    async def keeps_spaces(self) -> bool:
        """Whether texts come back as they are: some tokenizers drop spaces before a comma.

        :raises UnavailableError: the engine does not answer.
        """
        probe = "a , b . c 's"
        tokens = await self._tokenize({"prompt": probe, "add_special_tokens": False})
        return (await self.text(tokens)).strip() == probe

    async def _tokenize(self, asked: Mapping[str, object]) -> TokenIds[int]:
        answer = await self._call("tokenize", asked)
        tokens = answer.get("tokens")
        try:
            return token_ids(tokens)  # type: ignore[arg-type]  # checked by doing it
        except (TypeError, OverflowError) as error:
            raise EngineRefusedError("The engine's answer has no usable 'tokens'.") from error

    async def _call(self, name: str, asked: Mapping[str, object]) -> Mapping[str, object]:
        body = {"model": self._model, **asked}
        answer = await self._client.post(f"{self._url}/{name}", body, _DEADLINE_S)
        if not isinstance(answer, Mapping):
            raise EngineRefusedError("The engine's answer is no JSON object.")
        return answer
