from __future__ import annotations

import pytest

from sessiond.app.bench.resume.cost import Held, Prices, cost_per_served

GIB = 1 << 30


def test_time_of_the_engine_by_hand() -> None:
    told = cost_per_served(Prices(gpu_hour=3.6), [2.0, 4.0], 10, Held())
    assert told["cost"] == pytest.approx(0.003)
    assert told["served_within_bound"] == 1


def test_requests_that_were_late_are_paid_by_the_others() -> None:
    told = cost_per_served(Prices(gpu_hour=3.6), [2.0, 4.0, 6.0, 8.0], 4.0, Held())
    assert told["served_within_bound"] == 0.5
    assert told["cost"] == pytest.approx(0.005 / 0.5)


def test_what_kv_costs_while_the_session_is_away() -> None:
    prices = Prices(gpu_hour=2, gib_ram_hour=0.01, gib_nvme_month=0.1, tib_written=4, away_hours=10)
    held = Held(vram_share=0.25, ram_bytes=2 * GIB, disk_bytes=73 * GIB, written_bytes=512 * GIB)
    told = cost_per_served(prices, [0.0], 1, held)
    assert told["parts"] == pytest.approx(
        {"engine": 0, "vram": 5, "ram": 0.2, "disk": 0.1, "wear": 2}
    )
    assert told["cost"] == pytest.approx(7.3)


@pytest.mark.parametrize(
    ("prices", "seconds", "reason"),
    [(Prices(), [1.0], "no prices"), (Prices(gpu_hour=1), [9.0], "latency bound")],
)
def test_without_prices_or_served_requests_there_is_no_cost(
    prices: Prices, seconds: list[float], reason: str
) -> None:
    told = cost_per_served(prices, seconds, 2, Held())
    assert told["cost"] is None
    assert reason in told["reason"]
