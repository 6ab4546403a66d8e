from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.ids import SegmentId, new_hex_id
from sessiond.store import layout


@given(st.integers(1, 10**18 - 1))
def test_a_generation_has_one_name(generation: int) -> None:
    assert layout.generation_of(layout.manifest_file(generation)) == generation


@given(st.text())
def test_a_name_that_is_a_generations_is_its_only_one(name: str) -> None:
    generation = layout.generation_of(name)
    assert generation is None or layout.manifest_file(generation) == name


@pytest.mark.parametrize(
    "name",
    ["0.manifest", "01.manifest", "1.manifest\n", "1.manifest.tmp", "-1.manifest", "٣.manifest"],
)
def test_names_of_no_generation(name: str) -> None:
    assert layout.generation_of(name) is None


def test_a_segment_lies_in_one_of_256_folders() -> None:
    segment_id = SegmentId(new_hex_id())
    assert layout.segment_folder(segment_id) == ("segments", segment_id[:2])
    assert layout.segment_of(layout.segment_file(segment_id)) == segment_id
    assert layout.segment_of(layout.bad_notes_file(segment_id)) is None
