"""What the daemon remembers of tickets."""

from __future__ import annotations

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.service.watch import GivenTicket, Watchlist

KEY = DEFAULT_TENANT, SessionId("a")


def given(engine_id: str, at_unix_s: float, turn_id: str = "t") -> GivenTicket:
    return GivenTicket(engine_id, turn_id, at_unix_s, at_unix_s + 300.0)


def test_the_newest_ticket_of_each_engine_is_known_the_newest_of_all_last() -> None:
    watchlist = Watchlist()
    for ticket in (given("e1", 0.0), given("e2", 1.0), given("e1", 2.0, "u")):
        watchlist.expect_turn(KEY, ticket)
    assert watchlist.tickets(KEY, 3.0) == [given("e2", 1.0), given("e1", 2.0, "u")]


def test_one_that_has_expired_is_not() -> None:
    watchlist = Watchlist()
    watchlist.expect_turn(KEY, given("e1", 0.0))
    watchlist.expect_turn(KEY, given("e2", 100.0))
    assert watchlist.tickets(KEY, 300.0) == [given("e2", 100.0)]
    assert watchlist.tickets(KEY, 400.0) == []


def test_a_session_is_watched_as_long_as_a_ticket_is_valid() -> None:
    watchlist = Watchlist()
    watchlist.expect_turn(KEY, given("e1", 0.0))
    watchlist.drop([KEY], 299.0)
    assert watchlist.keys() == [KEY]
    watchlist.drop([KEY], 301.0)
    assert (watchlist.keys(), watchlist.tickets(KEY, 0.0)) == ([], [])


def test_one_of_before_the_session_was_made_is_another_sessions() -> None:
    watchlist = Watchlist()
    watchlist.expect_turn(KEY, given("e1", 10.0))
    assert watchlist.tickets(KEY, 20.0, since_unix_s=10.0) == [given("e1", 10.0)]
    assert watchlist.tickets(KEY, 20.0, since_unix_s=11.0) == []


def test_engines_of_long_ago_are_forgotten() -> None:
    watchlist = Watchlist()
    for number in range(9):
        watchlist.expect_turn(KEY, given(f"e{number}", 301.0 * number))
    assert watchlist._tickets == {KEY: {"e8": given("e8", 301.0 * 8)}}


def test_of_others_nothing_is_known() -> None:
    assert Watchlist().tickets(KEY, 0.0) == []
