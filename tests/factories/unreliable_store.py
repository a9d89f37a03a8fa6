"""A proxy in front of an S3 server, which answers with errors, cuts bodies, or lists what was there before."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

Fault = Callable[[str, str], str]
"""(method, path with its query) -> "", "500", "cut" (half of the body arrives) or "stale" (the answer that was
remembered for the same request)."""
LISTING = "list-type=2"


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on, and spoils the answers that the server's `fault` names."""

    protocol_version = "HTTP/1.1"
    server: "ProxyServer"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.fault(self.command, self.path)
        if fault == "500":
            self.server.spoilt += 1
            self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
            return
        status, headers, found = self._asked(body)
        key = f"{self.command} {self.path}"
        if fault == "stale" and key in self.server.remembered:
            self.server.spoilt += 1
            status, headers, found = self.server.remembered[key]
        elif LISTING in self.path:
            self.server.remembered[key] = status, headers, found
        self._answer(status, headers, found, cut=fault == "cut" and len(found) > 1)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        there = http.client.HTTPConnection(self.server.host, self.server.port)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        there.request(self.command, self.path, body, headers)
        answer = there.getresponse()
        found = answer.read()
        there.close()
        kept = [
            (n, v) for n, v in answer.getheaders() if n.lower() not in ("transfer-encoding", "connection")
        ]
        return answer.status, kept, found

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        lengths = [n for n, _ in headers if n.lower() == "content-length"]
        for name, value in headers:
            self.send_header(name, value)
        if not lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut:
            self.server.spoilt += 1
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class ProxyServer(ThreadingHTTPServer):
    """One proxy; `fault` may be set at any time, `spoilt` counts the answers that were."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Proxy)
        parts = urlsplit(endpoint)
        self.host, self.port = str(parts.hostname), int(parts.port or 80)
        self.fault: Fault = lambda _method, _path: ""
        self.spoilt = 0
        self.remembered: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}


@contextmanager
def unreliable(endpoint: str) -> Iterator[ProxyServer]:
    """Put a proxy in front of the S3 server at `endpoint`, for all that reads AWS_ENDPOINT_URL."""
    from s3fs import S3FileSystem

    server = ProxyServer(endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        patch.setenv("AWS_MAX_ATTEMPTS", "3")  # the client alone retries
        S3FileSystem.clear_instance_cache()
        yield server
    S3FileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()


def every(number: int, fault: str, method: str = "", part: str = "") -> Fault:
    """Spoil every `number`-th request of this method whose path has `part`."""
    lock, seen = threading.Lock(), [0]

    def choose(asked: str, path: str) -> str:
        if method not in ("", asked) or part not in path:
            return ""
        with lock:
            seen[0] += 1
            return "" if seen[0] % number else fault

    return choose
