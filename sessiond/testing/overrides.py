"""Every function that the guard wraps, and where its failing is tested.

The list is read from the source, so that a new override without a test is noticed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sessiond.connector

#: Run through by a turn and a suspend.
STORING = (
    "SessionConnector._arrive",
    "SessionConnector._may_match",
    "SessionConnector._matched",
    "SessionConnector._scheduled",
    "SessionConnector._rest",
    "SessionConnector._step_begins",
    "SessionConnector._step_ended",
    "SessionConnector._finish",
    "SnapshotTier.on_new_request",
    "SnapshotTier.on_request_finished",
    "SnapshotTier.is_suspend",
    "SnapshotTier.has_pending_work",
    "SnapshotTier.storable",
    "SnapshotTier._submit_store",
    "SnapshotTier._take_done",
    "SnapshotTier._result",
)
#: Run through by a turn that could restore its session.
LOADING = (
    "SessionConnector._may_match",
    "SnapshotTier.lookup",
    "SnapshotTier.offers",
    "SnapshotTier.keeps_promoted",
    "SnapshotTier.in_vram",
    "SnapshotTier._submit_load",
    "SnapshotTier._result",
    "SessionOffloadingManager._pin",
    "SessionOffloadingManager._unpin",
)
#: Run through by a reset of the engine's caches.
RESETTING = ("SessionConnector._turn_off", "SnapshotTier._drained")
#: Run through when the engine stops.
ENDING = ("SnapshotTier._shut_down",)
#: Not made to fail on the real engine, and why not.
NOT_INJECTED = {
    "Coordinator._handled": "no override: one answer of the mover; cut in test_overrides.py",
    "Coordinator._give_up": "the net under Coordinator._handled",
    "SnapshotTier._end_jobs": "the net under SnapshotTier._drained",
    "SessionConnector._tell": "runs once, before an engine is ready: test_connector.py",
    "SessionConnector._identify": "runs once, before an engine is ready: test_connector.py",
    "Identity._judged": "no override: runs once for each engine; cut in test_identity.py",
    "SnapshotTier.first_half": "runs only when two suspends meet in the RAM tier",
}

#: The classes that vLLM calls.
_CALLED_BY_VLLM = ("SessionConnector", "SnapshotTier", "SessionOffloadingManager")
_OWN_PARTS_ARE_GUARDED = "calls vLLM's own method, and of ours only what is guarded"
_AT_START = "an engine that cannot be set up must not start"
#: Their methods that the guard does not wrap, and why not.
UNGUARDED = {
    "SessionConnector.__init__": _AT_START,
    "SessionConnector._start": _AT_START,
    "SessionConnector.get_handshake_metadata": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.set_xfer_handshake_metadata_pp_aware": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.on_new_request": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.get_num_new_matched_tokens": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.update_state_after_alloc": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.build_connector_meta": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.take_events": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.request_finished_all_groups": _OWN_PARTS_ARE_GUARDED,
    "SessionConnector.reset_cache": _OWN_PARTS_ARE_GUARDED,
    "SnapshotTier.__init__": _AT_START,
    "SnapshotTier.attach": _AT_START,
    "SnapshotTier.spec": _AT_START,
    "SnapshotTier.submit_load": _OWN_PARTS_ARE_GUARDED,
    "SnapshotTier.submit_store": _OWN_PARTS_ARE_GUARDED,
    "SnapshotTier.get_finished_jobs": _OWN_PARTS_ARE_GUARDED,
    "SnapshotTier.drain_jobs": _OWN_PARTS_ARE_GUARDED,
    "SnapshotTier.shutdown": _OWN_PARTS_ARE_GUARDED,
    "SessionOffloadingManager.__init__": _AT_START,
    "SessionOffloadingManager.snapshot_tier": _AT_START,
    "SessionOffloadingManager.lookup": _OWN_PARTS_ARE_GUARDED,
    "SessionOffloadingManager.prepare_store": _OWN_PARTS_ARE_GUARDED,
    "SessionOffloadingManager._prepare_suspend": _OWN_PARTS_ARE_GUARDED,
    "SessionOffloadingManager.complete_load": _OWN_PARTS_ARE_GUARDED,
    "SessionOffloadingManager.on_request_finished": _OWN_PARTS_ARE_GUARDED,
    "SessionOffloadingManager.reset_cache": _OWN_PARTS_ARE_GUARDED,
    "SessionOffloadingManager._complete_promotion": _OWN_PARTS_ARE_GUARDED,
}


def guarded_functions() -> set[str]:
    """Return the qualified names of all methods that the guard wraps."""
    return {name for name, method in _methods() if _is_guarded(method)}


def unguarded_functions() -> set[str]:
    """Return the methods that the guard does not wrap, of the classes that vLLM calls."""
    return {
        name
        for name, method in _methods()
        if name.partition(".")[0] in _CALLED_BY_VLLM and not _is_guarded(method)
    }


def _methods() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in Path(sessiond.connector.__path__[0]).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            for child in node.body:
                if isinstance(child, ast.FunctionDef):
                    yield f"{node.name}.{child.name}", child


def _is_guarded(method: ast.FunctionDef) -> bool:
    return any(map(_is_guard, method.decorator_list))


def _is_guard(decorator: ast.expr) -> bool:
    if not isinstance(decorator, ast.Call):
        return False
    called = decorator.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "guarded"
