from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sessiond.connector.admission import Admission


def test_what_fits_is_admitted() -> None:
    assert Admission(10).try_admit("a", 10) == 10


def test_more_than_there_is_gets_all_there_is() -> None:
    assert Admission(10).try_admit("a", 99) == 10


def test_what_does_not_fit_waits() -> None:
    admission = Admission(10)
    admission.try_admit("a", 6)
    assert admission.try_admit("b", 6) is None


def test_a_small_one_does_not_overtake() -> None:
    admission = Admission(10)
    admission.try_admit("a", 6)
    admission.try_admit("b", 6)
    assert admission.try_admit("c", 1) is None


def test_who_needs_nothing_does_not_wait() -> None:
    admission = Admission(10)
    admission.try_admit("a", 6)
    admission.try_admit("b", 6)
    assert admission.try_admit("c", 0) == 0


def test_who_leaves_the_queue_holds_nobody_up() -> None:
    admission = Admission(10)
    admission.try_admit("a", 6)
    admission.try_admit("b", 6)
    admission.try_admit("c", 4)
    admission.release("b")
    assert admission.try_admit("c", 4) == 4


def test_asking_again_changes_nothing() -> None:
    admission = Admission(10)
    admission.try_admit("a", 6)
    assert admission.try_admit("a", 9) == 6
    assert admission.reserved_chunks == 6


def test_without_a_ram_tier_nothing_waits() -> None:
    admission = Admission(0)
    assert [admission.try_admit(name, 3) for name in "ab"] == [0, 0]


class AdmissionMachine(RuleBasedStateMachine):
    """Requests come, ask again and again, and leave."""

    names = st.sampled_from("abcdef")

    @initialize(capacity=st.integers(0, 12))
    def begin(self, capacity: int) -> None:
        self.admission = Admission(capacity)
        self.wanted: dict[str, int] = {}  # in the order of their first asking
        self.admitted: dict[str, int] = {}

    @rule(name=names, chunks=st.integers(0, 15))
    def ask(self, name: str, chunks: int) -> None:
        self.wanted.setdefault(name, chunks)
        chunks = self.wanted[name]
        granted = self.admission.try_admit(name, chunks)
        if granted is not None:
            assert granted == min(chunks, self.admission.capacity_chunks)
            before_it = [other for other in self.waiting() if other != name]
            came_first = list(self.wanted)[: list(self.wanted).index(name)]
            assert name in self.admitted or not granted or not set(before_it) & set(came_first)
            self.admitted[name] = granted

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.admission.release(name)
        self.wanted.pop(name, None)
        self.admitted.pop(name, None)

    def waiting(self) -> list[str]:
        return [name for name in self.wanted if name not in self.admitted]

    @invariant()
    def never_more_than_there_is(self) -> None:
        if hasattr(self, "admission"):
            assert self.admission.reserved_chunks == sum(self.admitted.values())
            assert self.admission.reserved_chunks <= self.admission.capacity_chunks

    def teardown(self) -> None:
        """Everybody who waits is admitted when the others leave."""
        while hasattr(self, "admission") and self.wanted:
            for name in list(self.admitted):
                self.leave(name)
            for name in self.waiting()[:1]:
                self.ask(name, 0)
                assert name in self.admitted


TestAdmissionMachine = AdmissionMachine.TestCase
