from __future__ import annotations

import pytest

from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import MAX_DEATHS, RETRY_S, JobDone, MoverWatch
from sessiond.connector.questions import Question
from sessiond.testing.fake_mover import FakeClock, FakeMovers

DEADLINE_S = 60.0
LOST = [JobDone(1, frozenset(), all_good=False)]
QUESTIONS: list[tuple[Question, protocol.Message]] = [
    (protocol.OpenLoad(5, "t", "s", 1, ""), protocol.LoadOpened(5, [0, 1, 2], [])),
    (protocol.Load(5, 2, [[0, 0]]), protocol.LoadDone(5, [], [], 0.1, 10)),
    (protocol.OpenSuspend(5, "t", "s", 1, ""), protocol.SuspendOpened(5, [], [])),
    (protocol.Store(5, 2, [[0, 0]]), protocol.StoreDone(5, [])),
    (protocol.FinishSuspend(5, commit=True), protocol.SuspendFinished(5, None, [])),
]


class Watched:
    """A watch, with what it called."""

    def __init__(self, movers: FakeMovers) -> None:
        self.movers = movers
        self.calls: list[str] = []
        self.watch = MoverWatch(
            movers.start,
            DEADLINE_S,
            lambda: self.calls.append("death"),
            lambda: self.calls.append("replaced"),
        )
        self.watch.poll()  # it has begun to work

    def ask(self, job_id: int = 1) -> None:
        self.watch.begin(job_id, frozenset({0, 1}))
        self.watch.ask(protocol.Load(job_id, 2, [[0, 0], [1, 1]]))


@pytest.fixture
def slow() -> Watched:
    """A mover that is not gone at once when it is killed."""
    return Watched(FakeMovers(die_at_once=False))


@pytest.fixture
def watched(movers: FakeMovers) -> Watched:
    return Watched(movers)


def test_an_answer_is_passed_on(watched: Watched) -> None:
    answer = protocol.LoadOpened(1, [0, 1], [])
    watched.movers.newest.answer(answer)
    assert watched.watch.poll() == [answer]


@pytest.mark.usefixtures("clock")
def test_an_answered_job_gives_its_chunks_once(watched: Watched) -> None:
    watched.ask()
    assert watched.watch.end(1) == frozenset({0, 1})
    assert watched.watch.end(1) is None


@pytest.mark.parametrize("question", [question for question, _ in QUESTIONS])
def test_a_mover_that_leaves_any_question_unanswered_is_killed(
    watched: Watched, clock: FakeClock, question: Question
) -> None:
    watched.watch.ask(question)
    clock.sleep(DEADLINE_S + 1)
    watched.watch.poll()
    assert watched.movers.all[0].killed


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_an_answered_question_has_no_deadline(
    watched: Watched, clock: FakeClock, question: Question, answer: protocol.Message
) -> None:
    watched.watch.ask(question)
    watched.movers.newest.answer(answer)
    watched.watch.poll()
    clock.sleep(DEADLINE_S + 1)
    watched.watch.poll()
    assert not watched.movers.all[0].killed


def test_within_its_deadline_it_may_think(watched: Watched, clock: FakeClock) -> None:
    watched.ask()
    clock.sleep(DEADLINE_S - 1)
    watched.watch.poll()
    assert not watched.movers.all[0].killed


def test_writes_are_done_in_turn_so_time_begins_with_the_answer_before(
    watched: Watched, clock: FakeClock
) -> None:
    watched.watch.ask(protocol.Store(1, 9, []))
    watched.watch.ask(protocol.FinishSuspend(9, commit=True))
    clock.sleep(DEADLINE_S - 1)
    watched.movers.newest.answer(protocol.StoreDone(1, []))
    watched.watch.poll()
    clock.sleep(DEADLINE_S - 1)
    watched.watch.poll()
    assert not watched.movers.all[0].killed


def test_an_answer_to_a_write_excuses_no_read(watched: Watched, clock: FakeClock) -> None:
    watched.ask()
    clock.sleep(DEADLINE_S - 1)
    watched.movers.newest.answer(protocol.StoreDone(7, []))
    watched.watch.poll()
    clock.sleep(2)
    watched.watch.poll()
    assert watched.movers.all[0].killed


@pytest.mark.usefixtures("clock")
def test_jobs_do_not_end_before_the_mover_is_gone(slow: Watched) -> None:
    slow.ask()
    slow.movers.newest.die()
    slow.watch.poll()
    assert slow.movers.newest.killed
    assert slow.watch.take_done() == []
    assert slow.watch.has_work


@pytest.mark.usefixtures("clock")
def test_jobs_end_when_the_mover_is_gone(slow: Watched) -> None:
    slow.ask()
    slow.movers.newest.die()
    slow.watch.poll()
    slow.movers.newest.gone = True
    slow.watch.poll()
    assert slow.watch.take_done() == LOST
    assert not slow.watch.has_jobs


@pytest.mark.usefixtures("clock")
def test_no_other_mover_is_started_beside_one_that_may_still_write(slow: Watched) -> None:
    slow.movers.newest.die()
    for _ in range(3):
        slow.watch.poll()
    assert len(slow.movers.all) == 1
    assert not slow.watch.is_usable


@pytest.mark.usefixtures("clock")
def test_another_one_is_started_when_it_is_gone(slow: Watched) -> None:
    slow.movers.newest.die()
    slow.watch.poll()
    slow.movers.newest.gone = True
    slow.watch.poll()
    assert len(slow.movers.all) == 2
    assert slow.watch.is_usable


@pytest.mark.usefixtures("clock")
def test_one_poll_replaces_a_mover_that_has_ended(watched: Watched) -> None:
    watched.movers.newest.die()
    watched.watch.poll()
    assert len(watched.movers.all) == 2


@pytest.mark.usefixtures("clock")
def test_death_is_told_before_the_replacement(watched: Watched) -> None:
    watched.movers.newest.die()
    watched.watch.poll()
    assert watched.calls == ["death", "replaced"]


@pytest.mark.usefixtures("clock")
def test_what_it_answered_before_its_end_counts(watched: Watched) -> None:
    watched.ask()
    watched.movers.newest.answer(protocol.LoadDone(1, [], [], 0.1, 10))
    watched.movers.newest.die()
    assert len(watched.watch.poll()) == 1
    assert watched.calls == []
    assert watched.watch.poll() == []
    assert watched.calls == ["death", "replaced"]


@pytest.mark.usefixtures("clock")
def test_a_dying_movers_answers_are_not_read(slow: Watched) -> None:
    slow.ask()
    slow.movers.newest.die()
    slow.watch.poll()
    slow.movers.newest.answer(protocol.LoadDone(1, [], [], 0.1, 10))
    assert slow.watch.poll() == []


@pytest.mark.usefixtures("clock")
def test_nothing_is_asked_while_there_is_none(slow: Watched) -> None:
    slow.movers.newest.die()
    slow.watch.poll()
    slow.watch.ask(protocol.OpenLoad(1, "t", "s", 1, ""))
    slow.watch.tell(protocol.ClosePlan(1))
    assert slow.movers.newest.sent == []


def test_questions_to_a_dead_mover_trouble_no_later_one(watched: Watched, clock: FakeClock) -> None:
    watched.watch.ask(protocol.OpenLoad(1, "t", "s", 1, ""))
    watched.movers.newest.die()
    watched.watch.poll()
    clock.sleep(DEADLINE_S + 1)
    watched.watch.poll()
    assert not watched.movers.newest.killed


@pytest.mark.usefixtures("clock")
def test_after_too_many_deaths_it_stays_away(watched: Watched) -> None:
    for _ in range(MAX_DEATHS + 3):
        watched.movers.newest.die()
        watched.watch.poll()
    assert len(watched.movers.all) == MAX_DEATHS
    assert not watched.watch.is_usable
    assert watched.watch.poll() == []


def test_a_start_that_fails_is_tried_again_a_moment_later(
    watched: Watched, clock: FakeClock
) -> None:
    watched.movers.refuses = True
    watched.movers.newest.die()
    watched.watch.poll()
    watched.movers.refuses = False
    watched.watch.poll()
    assert not watched.watch.is_usable
    assert watched.watch.has_work  # an idle engine asks on
    clock.sleep(RETRY_S)
    watched.watch.poll()
    assert watched.watch.is_usable


def test_starts_that_fail_count_as_deaths(watched: Watched, clock: FakeClock) -> None:
    watched.movers.refuses = True
    watched.movers.newest.die()
    for _ in range(MAX_DEATHS + 3):
        watched.watch.poll()
        clock.sleep(RETRY_S)
    assert watched.watch.deaths == MAX_DEATHS
    assert watched.calls == ["death"] * MAX_DEATHS
    assert not watched.watch.has_work


def test_where_there_is_none_its_wait_passes_all_the_same(
    watched: Watched, clock: FakeClock
) -> None:
    watched.movers.refuses = True
    watched.movers.newest.die()
    watched.watch.poll()
    began_s = clock.monotonic()
    watched.watch.wait(0.02)  # else an idle engine would ask without a rest
    assert clock.monotonic() - began_s == pytest.approx(0.02)


@pytest.mark.usefixtures("clock")
def test_closing_ends_the_mover(watched: Watched) -> None:
    watched.watch.close()
    assert watched.movers.newest.closed


def test_a_long_job_that_makes_progress_does_not_hang(watched: Watched, clock: FakeClock) -> None:
    watched.ask()
    for _ in range(5):
        clock.sleep(DEADLINE_S - 1)
        watched.movers.newest.answer(protocol.Progress(1))
        watched.watch.poll()
    watched.watch.poll()
    assert not watched.movers.newest.killed
    clock.sleep(DEADLINE_S + 1)
    watched.watch.poll()
    assert watched.movers.all[0].killed


def test_what_waits_behind_a_long_job_does_not_hang(watched: Watched, clock: FakeClock) -> None:
    watched.watch.ask(protocol.Store(1, 9, []))
    watched.watch.ask(protocol.OpenSuspend(10, "t", "s", 1, ""))
    watched.watch.ask(protocol.Load(2, 3, []))
    watched.watch.ask(protocol.Load(4, 5, []))
    for _ in range(3):
        clock.sleep(DEADLINE_S - 1)
        watched.movers.newest.answer(protocol.Progress(1))
        watched.movers.newest.answer(protocol.Progress(2))
        watched.watch.poll()
        watched.watch.poll()
    assert not watched.movers.newest.killed
    watched.movers.newest.answer(protocol.StoreDone(1, []))
    watched.movers.newest.answer(protocol.LoadDone(2, [], [], 1.0, 1))
    watched.watch.poll()
    clock.sleep(DEADLINE_S - 1)
    watched.watch.poll()
    assert not watched.movers.newest.killed
    clock.sleep(2)
    watched.watch.poll()
    assert watched.movers.all[0].killed


@pytest.mark.parametrize("other", [protocol.Store(7, 9, []), protocol.Load(7, 9, [])])
def test_another_jobs_progress_excuses_no_job(
    watched: Watched, clock: FakeClock, other: protocol.Store | protocol.Load
) -> None:
    """Else a read that hangs would last for as long as anything else is moved."""
    watched.ask()
    watched.watch.ask(other)
    for _ in range(2):
        clock.sleep(DEADLINE_S / 2 + 1)
        watched.movers.newest.answer(protocol.Progress(7))
        watched.watch.poll()
        watched.watch.poll()
    assert watched.movers.all[0].killed


def test_deaths_of_long_ago_are_forgiven(watched: Watched, clock: FakeClock) -> None:
    for _ in range(MAX_DEATHS * 2):
        watched.movers.newest.die()
        watched.watch.poll()
        clock.sleep(1800)
    assert watched.watch.is_usable
