from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessiond.testing.fake_tokenizer import END, decode, encode, render, spell

letters = st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="<")
texts = st.text(letters, max_size=40)


@given(texts)
def test_a_text_has_several_spellings(text: str) -> None:
    assert decode(encode(text)) == decode(spell(text)) == text
    assert len(encode(text)) == (len(text) + 1) // 2


def test_messages_end_with_a_special_token() -> None:
    tokens = render([{"role": "user", "content": "why?"}])
    assert decode(tokens) == "<|start|>user:why?<|end|><|start|>assistant:"
    assert tokens.count(END) == 1
