"""Sources on object stores and web servers: a real S3 server and a real web server, which fail now and then."""

import bz2
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from s3fs import S3FileSystem

from data_pipeline.errors import UserError
from data_pipeline.io import object_store
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.read import discover, read
from tests.command_line import BUCKET

LONG = "\n\n".join(f"Document number {n} of very many." for n in range(170_000)).encode()
FILES = {
    "sub/a.txt": LONG,
    "b.jsonl.zst": zstandard.compress(b'{"text": "one"}\n{"text": "two"}\n'),
    "c.txt.bz2": bz2.compress(b"three\n\nfour"),
    ".hidden/d.txt": b"no",
    "README.md": b"no",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "DELAYS", (0.01, 0.01, 0.01))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    pq.write_table(
        pa.table({"text": [f"row {n}" for n in range(500)]}), folder / "e.parquet", row_group_size=60
    )
    return folder


@pytest.fixture(scope="module")
def bucket(local: Path, endpoint: str) -> str:
    """The files of the local folder, in a folder of the store."""
    store = fsspec.filesystem("s3")
    for path in local.rglob("*"):
        if path.is_file():
            store.put_file(str(path), f"{BUCKET}/data/{path.relative_to(local)}")
    return f"s3://{BUCKET}/data"


def documents(*names: object) -> list[tuple[str, str]]:
    chosen = DataSettings(sources=[str(name) for name in names])
    return [(d.id, d.text) for unit in discover(chosen) for d in read(unit, chosen, Counts())]


def error(*names: object) -> str:
    with pytest.raises(UserError) as caught:
        documents(*names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_bucket_reads_as_a_folder_does(bucket: str, local: Path) -> None:
    expected = documents(local)
    assert len(expected) == 170_000 + 500 + 4
    assert documents(bucket) == expected
    assert documents(f"{bucket}/sub/*.txt")[0] == ("a.txt:1", "Document number 0 of very many.\n")
    assert documents(f"{bucket}/b.jsonl.zst") == [("b.jsonl.zst:1", "one"), ("b.jsonl.zst:2", "two")]


def test_a_missing_object_is_refused(bucket: str) -> None:
    assert "there is no such file or folder" in error(f"{bucket}/none.txt")
    assert "s3://no-such-bucket/x.txt" in error("s3://no-such-bucket/x.txt")


def test_a_longer_object_than_the_one_listed_before_is_read_whole(bucket: str) -> None:
    """A worker's client keeps listings, with sizes; Hugging Face's lists the folder of each file that it opens."""
    store, path = fsspec.filesystem("s3"), f"{BUCKET}/longer/a.txt"
    store.pipe_file(path, b"short")
    chosen = DataSettings(sources=[f"s3://{path}"])
    store.invalidate_cache()
    store.ls(f"{BUCKET}/longer")
    elsewhere = S3FileSystem(skip_instance_cache=True)
    elsewhere.pipe_file(path, b"short no more")
    part = SourceFile(f"s3://{path}", "a.txt", "text", "", -1)
    assert [document.text for document in read(part, chosen, Counts())] == ["short no more"]


def test_an_object_that_goes_away_meanwhile(bucket: str) -> None:
    store = fsspec.filesystem("s3")
    store.pipe_file(f"{BUCKET}/gone/a.txt", LONG)
    chosen = DataSettings(sources=[f"s3://{BUCKET}/gone"])
    units = discover(chosen)
    store.rm_file(f"{BUCKET}/gone/a.txt")
    with pytest.raises(UserError, match=rf"^s3://{BUCKET}/gone/a\.txt: cannot be read: "):
        list(read(units[0], chosen, Counts()))


class Server(ThreadingHTTPServer):
    """Serves FILES, by ranges if asked to; what is in `faults` happens first, once each."""

    def __init__(self, ranges: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = ranges
        self.faults: list[str] = []
        self.asked: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        content = FILES.get(self.path[1:])
        self.server.asked[self.command] += 1
        if content is None:
            self.send_error(404)
            return
        fault = self.server.faults.pop(0) if body and self.server.faults else ""
        if fault == "busy":
            self.send_error(503)
            return
        start, stop = 0, len(content)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if self.server.ranges and wanted:
            start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        else:
            self.send_response(200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        with suppress(OSError):  # who asked has heard enough
            self.wfile.write(
                b"" if not body else content[start : (start + stop) // 2 if fault == "cut" else stop]
            )
        self.close_connection = True


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def web(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_reads_from_a_failing_web_server_are_retried(web: Server, local: Path) -> None:
    local_documents = documents(local / "sub" / "a.txt")
    web.faults = ["cut", "", "busy", "cut"] if web.ranges else ["cut", "busy", "cut"]
    found = documents(f"{web.url}/sub/a.txt")
    assert not web.faults
    assert found == local_documents
    web.faults = ["cut"]
    assert documents(f"{web.url}/c.txt.bz2") == [("c.txt.bz2:1", "three\n"), ("c.txt.bz2:3", "four")]


def test_a_web_server_that_keeps_failing_is_one_line(web: Server) -> None:
    url = f"{web.url}/sub/a.txt"
    chosen = DataSettings(sources=[url])
    units = discover(chosen)
    web.faults = ["busy", "cut"] * 10
    with pytest.raises(UserError, match=r"a\.txt: cannot be read: ") as caught:
        list(read(units[0], chosen, Counts()))
    assert str(caught.value).startswith(url)
    assert "there is no such file or folder" in error(f"{web.url}/none.txt")


@pytest.mark.parametrize("path", ["a.txt", "folder/", "folder/*.txt"])
def test_a_web_server_that_refuses_the_connection_is_not_taken_for_an_empty_one(path: str) -> None:
    line = error(f"http://127.0.0.1:9/{path}")
    assert line.startswith(f"http://127.0.0.1:9/{path}: cannot be read: ")
    assert "Connect" in line


@pytest.mark.parametrize("path", ["a.txt", "folder", "folder/", "folder/*.txt"])
def test_a_store_that_refuses_the_connection_is_not_taken_for_an_empty_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    try:
        line = error(f"s3://bucket/{path}")
    finally:
        S3FileSystem.clear_instance_cache()
    assert line.startswith(f"s3://bucket/{path}: cannot be read: ")
    assert "connect" in line.lower()


def test_an_empty_folder_of_a_server_has_no_file_to_read(
    web: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "empty/", b"<html>nothing is linked here</html>")
    assert "no file to read here" in error(f"{web.url}/empty/")
