from __future__ import annotations

import threading

import pytest

from sessiond.app.bench.soak.gate import Gate

PATIENCE_S = 20.0


class Worker(threading.Thread):
    """Passes the gate again and again, and does each step when it is told to."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(daemon=True)
        self.gate, self.steps = gate, 0
        self.may_go_on, self.in_step = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        while self.gate.passes():
            self.steps += 1
            self.in_step.set()
            self.may_go_on.wait(PATIENCE_S)


def test_a_rest_waits_for_every_step_and_holds_the_next() -> None:
    gate = Gate(2)
    workers = [Worker(gate) for _ in range(2)]
    assert all(worker.in_step.wait(PATIENCE_S) for worker in workers)
    with pytest.raises(RuntimeError, match="do not stop"), gate.rest(0.01):
        pytest.fail("they are in the middle of a step")
    resting = threading.Event()

    def rest() -> None:
        with gate.rest(PATIENCE_S):
            seen.extend(worker.steps for worker in workers)
            resting.set()

    seen: list[int] = []
    thread = threading.Thread(target=rest)
    thread.start()
    for worker in workers:
        worker.may_go_on.set()
    assert resting.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    gate.end(PATIENCE_S)
    for worker in workers:
        worker.join(PATIENCE_S)
    assert all(worker.steps >= before >= 1 for worker, before in zip(workers, seen, strict=True))


def test_an_agent_that_fails_ends_the_soak() -> None:
    gate = Gate(1)
    gate.fail(KeyError("its own fault"))
    with pytest.raises(RuntimeError, match="failed"):
        gate.end(PATIENCE_S)
