"""Two prompts whose chunks have the same keys, as under a hash that collides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.tokens import TokenIds
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import CHUNK_TOKENS, bf16_bytes, some_tokens

if TYPE_CHECKING:
    from sessiond.testing.colliding import Colliding

# Importing vLLM warns; what it warns of is torch's.
pytestmark = pytest.mark.filterwarnings("ignore")

CHUNKS = 4


def prompt(seed: int) -> TokenIds[int]:
    return some_tokens(CHUNKS * CHUNK_TOKENS + 1, seed)


def kv(seed: int, chunk: int) -> bytes:
    """What a chunk of this prompt holds, and of no other."""
    return bf16_bytes(100 * seed + chunk)


def suspend(rig: MoverRig, session: str, seed: int) -> None:
    opened = rig.open_suspend(session, prompt(seed))
    for chunk in range(CHUNKS):
        rig.fill(chunk, seed=100 * seed + chunk)
    rig.store_chunks(opened.plan_id, [(chunk, chunk) for chunk in range(CHUNKS)])
    assert rig.finish_suspend(opened.plan_id).snapshot is not None


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MoverRig]:
    folder = tmp_path_factory.mktemp("collisions")
    made = MoverRig(folder, make_hello(folder), in_process=False)
    suspend(made, "s-1", seed=1)
    suspend(made, "s-2", seed=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def vllm(rig: MoverRig) -> Colliding:
    # Imported here, where its warnings are let pass.
    from sessiond.testing.colliding import Colliding  # noqa: PLC0415 - see above

    return Colliding(rig, CHUNKS)


@pytest.mark.parametrize("seed", [1, 2])
def test_sessions_whose_keys_collide_get_their_own_chunks(vllm: Colliding, seed: int) -> None:
    vllm.forget_ram()
    request = vllm.arrive(f"s-{seed}", prompt(seed))

    assert vllm.found(request) == [True] * CHUNKS
    for chunk in range(CHUNKS):
        assert vllm.loaded(request, chunk) == kv(seed, chunk)


def test_a_prompt_gets_what_its_tokens_share_with_the_snapshot(vllm: Colliding) -> None:
    vllm.forget_ram()
    common = CHUNK_TOKENS + 5
    request = vllm.arrive("s-1", prompt(1)[:common] + prompt(2)[common:])

    assert vllm.found(request) == [True] + [False] * (CHUNKS - 1)
    assert vllm.loaded(request, 0) == kv(1, 0)


def test_ram_goes_by_keys_alone_so_engines_whose_hashes_collide_are_refused(
    vllm: Colliding,
) -> None:
    # This is vLLM's part: nothing of ours is asked for what is in RAM, or VRAM, already. So
    # sessiond starts with a cryptographic hash only.
    vllm.forget_ram()
    assert all(vllm.found(vllm.arrive("s-1", prompt(1))))

    stranger = vllm.arrive("s-2", prompt(2))

    assert all(vllm.found(stranger))
    assert vllm.loaded(stranger, 0) == kv(1, 0)
