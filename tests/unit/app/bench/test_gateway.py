from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sessiond.app.bench.calls import Caller, Target, completion_tokens, stream_at_once
from sessiond.app.bench.figures import added
from sessiond.app.bench.gateway import DIRECT, FIRST, LAST, THROUGH, TICKETED, WHOLE, summary
from sessiond.app.bench.given import GatewayOptions
from sessiond.app.main import main
from sessiond.domain.errors import ConfigurationError

EVENT = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens":7}}\n\n'
END = b"data: [DONE]\n\n: sessiond {}\n\n"


def test_pairs_are_compared_not_two_medians() -> None:
    """What slows both of a pair cancels out."""
    found = added([0.010, 0.500, 0.020], [0.012, 0.503, 0.021])
    assert found.count == 3
    assert found.median_ms == pytest.approx(2)
    assert [found.low_ms, found.p90_ms] == pytest.approx([1, 3])
    assert list(found.medians_ms) == pytest.approx([2, 3, 1])


def test_a_run_has_ten_parts() -> None:
    found = added([0.0] * 25, [0.001 * place for place in range(25)])
    assert len(found.medians_ms) == 9  # of three pairs each, the last one of one
    assert found.medians_ms[0] == pytest.approx(1)


@pytest.mark.parametrize(("before", "after"), [([], []), ([0.1], [0.1, 0.2])])
def test_what_is_no_pair_is_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        added(before, after)


def test_the_report_has_the_worst_kind_and_the_median_round() -> None:
    took_s = {
        kind: {DIRECT: [0.1, 0.1], TICKETED: [0.101, 0.101], THROUGH: [0.1 + more, 0.1 + more]}
        for kind, more in ((WHOLE, 0.002), (FIRST, 0.003), (LAST, 0.001))
    }
    tokens_s = {DIRECT: [100.0, 200.0, 100.0], THROUGH: [98.0, 180.0, 99.0]}
    found = summary(took_s, tokens_s)
    assert found["added_ms_median"] == pytest.approx(3)
    assert found["throughput_ratio"] == pytest.approx(0.98)
    assert found["throughput_ratio_least"] == pytest.approx(0.9)
    assert found["added_ms"][WHOLE]["median_ms"] == pytest.approx(2)
    assert found["added_ms_by_engine"][FIRST]["median_ms"] == pytest.approx(1)


def test_tokens_are_those_that_the_usage_counts() -> None:
    assert completion_tokens(b"HTTP/1.1 200 OK\r\n\r\n" + EVENT + USAGE + END) == 7


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\n\r\n" + USAGE + END,
        b"HTTP/1.1 200 OK\r\n\r\n" + USAGE,
        b"HTTP/1.1 200 OK\r\n\r\n" + END,
        b"",
    ],
)
def test_a_stream_without_an_end_counts_for_nothing(answer: bytes) -> None:
    with pytest.raises(RuntimeError, match="was answered"):
        completion_tokens(answer)


@pytest.mark.parametrize("field", ["rounds", "turns", "context_tokens", "streams", "stream_tokens"])
def test_numbers_are_above_zero(field: str) -> None:
    options = GatewayOptions(Path("x"), Path("y"), **{field: 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        options.require_possible()


def test_options_that_cannot_be_used_are_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bench"
    assert main(["bench", "gateway", "--folder", str(folder), "--streams", "0"]) == 2
    assert "above zero" in capsys.readouterr().err
    assert not folder.exists()


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(GatewayOptions(Path("x"), Path("y"), token="secret"))


class Handler(BaseHTTPRequestHandler):
    """Streams if it is asked to; gives up its connection after each answer."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = EVENT + USAGE + END if b'"stream": true' in body else b"{}"
        self.send_response(200 if self.path == "/v1/chat/completions" else 404)
        self.send_header("content-length", str(len(answer)))
        self.send_header("x-sessiond-plan", self.headers.get("x-session-id", ""))
        self.end_headers()
        self.wfile.write(answer)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_calls_are_timed() -> None:
    with server() as url:
        caller = Caller(Target(url, {}).with_headers(x_session_id="agent"))
        whole = caller.call({"stream": False})
        stream = caller.call({"stream": True})  # on another connection: the server closed the first
        caller.close()
        calls = [({"x-session-id": "s"}, {"stream": True})] * 3
        assert asyncio.run(stream_at_once(url, calls)) == 21
    assert (whole.plan, stream.plan) == ("agent", "agent")
    assert 0 < stream.first_s <= stream.last_s
