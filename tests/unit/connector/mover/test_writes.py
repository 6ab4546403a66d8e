from __future__ import annotations

import random
import threading
import time

from sessiond.connector.mover.writes import Order

PLACES = 24
THREADS = 4


def test_steps_come_in_order_whoever_is_ready_first() -> None:
    order, seen = Order(), list[int]()
    places = iter(range(PLACES))
    pauses_s = [random.Random(place).random() / 200 for place in range(PLACES)]

    def work() -> None:
        for place in places:
            time.sleep(pauses_s[place])
            if place % 5:  # every fifth has failed before its step
                order.wait_for(place)
                seen.append(place)
            order.pass_on(place)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert seen == [place for place in range(PLACES) if place % 5]
