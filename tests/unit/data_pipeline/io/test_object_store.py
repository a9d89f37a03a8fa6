"""Object stores, with a real S3 server on this machine: written whole, read by ranges, tried again."""

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import fsspec
import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.io import object_store
from data_pipeline.io.files import exists, read_bytes, read_ranges, write_whole
from data_pipeline.loader.loader import order_of
from data_pipeline.shards.index import Index
from data_pipeline.shards.shard import BlockReader, tokenizer_problem, verify_full
from data_pipeline.stages.tasks import deliver
from tests.command_line import BUCKET, Maskmill, setting
from tests.factories.shards import shard_folder


def files(uri: str) -> dict[str, bytes]:
    """What lies in a folder of the store, but for the log."""
    store, path = fsspec.core.url_to_fs(uri)
    store.invalidate_cache()
    found = {name.rpartition("/")[2]: store.cat_file(name) for name in store.find(path)}
    return {name: data for name, data in found.items() if name != "prepare.log.json"}


@pytest.mark.slow
def test_preparing_into_a_bucket_gives_the_bytes_of_a_folder(
    endpoint: str, maskmill: Maskmill, tiny: list[str], tmp_path: Path
) -> None:
    out = f"s3://{BUCKET}/shards"
    settings = [*tiny, f"data.out={out}"]
    assert "data.work: is empty" in maskmill("prepare", "demo", *settings, code=2).stderr
    settings.append(f"data.work={tmp_path}/work")
    maskmill("prepare", "demo", *settings)
    local = Path(next(s.partition("=")[2] for s in tiny if s.startswith("data.out=")))
    assert files(out) == {p.name: p.read_bytes() for p in local.iterdir() if p.name != "prepare.log.json"}
    assert list((tmp_path / "work").iterdir()) == []
    assert "already prepared" in maskmill("prepare", "demo", *settings).stdout
    assert "holds other data" in maskmill("prepare", "demo", *settings, "data.seed=9", code=2).stderr
    verify_full(Index.load(out))

    run = [*settings, f"run.dir={tmp_path}/run", "run.ranks=1", "train.steps=2"]
    maskmill("train", "demo", *run)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 2


def test_a_bucket_is_whole_or_has_no_index_and_a_killed_run_resumes(
    endpoint: str, maskmill: Maskmill, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = f"s3://{BUCKET}/killed"
    settings = [*tiny, f"data.out={out}", f"data.work={tmp_path}/work"]
    for stage in ("read", "plan", "gather", "write"):
        maskmill("prepare", "demo", *settings, "--stage", stage, "--share", "0/2")
        maskmill("prepare", "demo", *settings, "--stage", stage, "--share", "1/2")
    assert not exists(f"{out}/index.json")
    sent = files(out)
    assert any(name.endswith(".tar") for name in sent)
    assert (
        "unfinished work of other settings"
        in maskmill("prepare", "demo", *settings, "data.seed=9", code=2).stderr
    )
    maskmill("prepare", "demo", *settings)
    assert sent.items() - files(out).items() == {("identity.json", sent["identity.json"])}
    local = Path(next(s.partition("=")[2] for s in tiny if s.startswith("data.out=")))
    assert files(out) == {p.name: p.read_bytes() for p in local.iterdir() if p.name != "prepare.log.json"}


def test_a_folder_of_other_work_in_a_bucket_is_left_alone(
    endpoint: str, maskmill: Maskmill, tiny: list[str], tmp_path: Path
) -> None:
    write_whole(f"s3://{BUCKET}/theirs/thesis.tex", b"precious")
    settings = [*tiny, f"data.out=s3://{BUCKET}/theirs", f"data.work={tmp_path}/work"]
    assert "holds other files" in maskmill("prepare", "demo", *settings, code=2).stderr
    assert files(f"s3://{BUCKET}/theirs") == {"thesis.tex": b"precious"}


def test_other_text_of_the_same_size_is_another_source(
    endpoint: str, maskmill: Maskmill, tiny: list[str], tmp_path: Path
) -> None:
    text, uri = Path(setting(tiny, "data.sources")).read_bytes(), f"s3://{BUCKET}/text/a.txt"
    write_whole(uri, text)
    settings = [*tiny, f"data.sources=s3://{BUCKET}/text", f"data.tokens={tmp_path}/tokens"]
    maskmill("prepare", "demo", *settings, f"data.out={tmp_path}/one")
    assert "already prepared" in maskmill("prepare", "demo", *settings, f"data.out={tmp_path}/one").stdout
    write_whole(uri, text.replace(b"a", b"e"))
    line = maskmill("prepare", "demo", *settings, f"data.out={tmp_path}/one", code=2).stderr
    assert "its sources had other names, sizes or times (the first that differs: a.txt)" in line
    maskmill("prepare", "demo", *settings, f"data.out={tmp_path}/two")
    assert len(list((tmp_path / "tokens").iterdir())) == 2, (
        "text that was tokenized is that of the first object"
    )


def test_only_object_stores_are_written_to(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    for out in ("http://127.0.0.1:1/shards", "memory://shards"):
        line = maskmill("prepare", "demo", *tiny, f"data.out={out}", f"data.work={tmp_path}", code=2).stderr
        assert "is not written to" in line
    assert "pipe:" in maskmill("prepare", "demo", *tiny, "data.out=pipe:cat://", code=2).stderr


def test_shards_are_read_over_http(endpoint: str, tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path / "shards", [20, 8, 3])
    store = fsspec.filesystem("s3")
    store.put(f"{tmp_path}/shards", f"{BUCKET}/http", recursive=True)
    for name in store.find(f"{BUCKET}/http"):
        store.chmod(name, acl="public-read")
    found = Index.load(f"{endpoint}/{BUCKET}/http")
    assert found.identity == index.identity
    assert order_of(found, seed=1, global_batch=4) == order_of(index, seed=1, global_batch=4)
    wanted = [(1, 0), (0, 2), (2, 0)]
    pairs = zip(
        BlockReader(found, found.train).read(wanted),
        BlockReader(index, index.train).read(wanted),
        strict=True,
    )
    assert all(a == b for a, b in pairs)


class Moody(BaseHTTPRequestHandler):
    """Serves one file by ranges, after so many failures."""

    failures = 0
    code = 503
    asked = 0
    content = bytes(range(200))

    def do_GET(self) -> None:
        type(self).asked += 1
        if type(self).failures > 0:
            type(self).failures -= 1
            self.send_error(type(self).code)
            return
        first, last = 0, len(self.content) - 1
        if wanted := self.headers.get("Range"):
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        data = self.content[first : last + 1]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(object_store, "DELAYS", (0.01, 0.02, 0.03))
    Moody.failures, Moody.code, Moody.asked = 0, 503, 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/file"
    server.shutdown()
    server.server_close()


def test_what_fails_for_a_moment_is_tried_again(moody: str) -> None:
    Moody.failures = 2
    assert read_bytes(moody) == Moody.content
    assert Moody.asked == 3
    Moody.failures = 2
    parts = list(read_ranges([(moody, 10, 5), (moody, 100, 7), (moody, 0, 1)]))
    assert [part.tobytes() for part in parts] == [Moody.content[10:15], Moody.content[100:107], b"\0"]


def test_what_keeps_failing_is_one_line(moody: str) -> None:
    Moody.failures = 100
    with pytest.raises(UserError, match="cannot be read"):
        read_bytes(moody)
    assert Moody.asked == 1 + len(object_store.DELAYS)
    with pytest.raises(UserError, match="cannot be read"):
        list(read_ranges([(moody, 0, 4)]))


def test_what_will_not_change_is_not_tried_again(moody: str) -> None:
    Moody.failures, Moody.code = 100, 403
    with pytest.raises(UserError, match="cannot be read"):
        read_bytes(moody)
    assert Moody.asked == 1
    Moody.code = 404
    with pytest.raises(FileNotFoundError):
        read_bytes(moody)


def test_whole_files_are_hashed_as_patiently(moody: str) -> None:
    """`inspect` and data.verify=full; fsspec says of a web file that fails to open only that it is not found."""
    expected = SimpleNamespace(sha256=hashlib.sha256(Moody.content).hexdigest())
    index = cast(Index, SimpleNamespace(path=lambda _name: moody, vocabulary=expected))
    Moody.failures = 2
    assert tokenizer_problem(index) is None
    assert Moody.failures == 0
    Moody.failures = 100
    assert "cannot be read: 503" in str(tokenizer_problem(index))
    Moody.asked, Moody.code = 0, 403
    assert "cannot be read: 403" in str(tokenizer_problem(index))
    assert Moody.asked == 1
    Moody.code = 404
    assert "missing or changed" in str(tokenizer_problem(index))


@pytest.mark.parametrize(
    ("protocol", "calls"),
    [
        ("http", 4),
        (("http", "https"), 4),
        ("hf", 4),
        ("s3", 1),
        (("s3", "s3a"), 1),
        (("gcs", "gs"), 1),
        ("abfs", 1),
    ],
)
def test_one_layer_retries(
    protocol: str | tuple[str, ...], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either ours or that of the store's client, whose error is one of a file."""
    monkeypatch.setattr(object_store, "DELAYS", (0.0, 0.0, 0.0))
    asked = []

    class HTTPClientError(Exception):
        """As botocore names its own."""

    def ask() -> None:
        asked.append(1)
        raise HTTPClientError("the connection broke")

    with pytest.raises(OSError, match="the connection broke"):
        object_store.with_retries(SimpleNamespace(protocol=protocol), ask)
    assert len(asked) == calls


def test_a_store_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "DELAYS", (0.01,))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(UserError, match="cannot be read"):
            read_bytes(f"http://127.0.0.1:{unused.getsockname()[1]}/index.json")


def test_part_of_an_upload_is_not_taken_for_all(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "DELAYS", (0.01,))
    (tmp_path / "shard.tar").write_bytes(np.arange(1000).tobytes())
    store = fsspec.filesystem("s3")
    monkeypatch.setattr(
        store, "put_file", lambda file, path: store.pipe_file(path, Path(file).read_bytes()[:10])
    )
    with pytest.raises(UserError, match="10 of 8000 bytes arrived"):
        object_store.upload(tmp_path / "shard.tar", f"s3://{BUCKET}/short.tar")
    assert os.path.getsize(tmp_path / "shard.tar") == 8000


@pytest.mark.parametrize(
    "meanwhile", ["before", "after"], ids=["sent before", "sent between sending and checking"]
)
def test_two_processes_can_deliver_the_same_shard(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """As where a task of a stage is done twice at once: whoever is first takes the files away under the other."""
    uri, shard = f"s3://{BUCKET}/twice-{meanwhile}", tmp_path / "train-000000.tar"
    contents = {"train-000000.tar": b"shard", "train-000000.json": b"table"}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    store = fsspec.filesystem("s3")
    real, calls = store.put_file, []

    def put_file(file: str, path: str) -> None:
        calls.append(path)
        first = len(calls) == 1
        if first and meanwhile == "before":
            deliver(shard, uri)
        real(file, path)
        if first and meanwhile == "after":
            deliver(shard, uri)

    monkeypatch.setattr(store, "put_file", put_file)
    deliver(shard, uri)
    assert len(calls) == 4, "each of the two began with each file"
    assert files(uri) == contents
    assert not list(tmp_path.iterdir())


def test_a_bucket_that_is_not_there_keeps_the_shard(endpoint: str, tmp_path: Path) -> None:
    for name in ("train-000000.tar", "train-000000.json"):
        (tmp_path / name).write_bytes(b"of worth")
    with pytest.raises(FileNotFoundError):
        deliver(tmp_path / "train-000000.tar", "s3://no-such-bucket/shards")
    assert len(list(tmp_path.iterdir())) == 2
