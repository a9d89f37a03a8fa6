"""What several tests share: the real command line, and a small corpus in shards."""

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.command_line import BUCKET, ROOT, TINY, Maskmill, as_only_rank, command, environ, write_text

SHARED = "PYTEST_XDIST_WORKER" in os.environ
"""Whether other workers run tests on the same cores. Then each has one thread: where there are more threads than cores,
they wait for one another in busy loops, and a small product of matrices takes longer than on one thread."""
if SHARED:
    # read as torch is imported, here and in processes that tests start
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same cases at every run, so that a change is judged by what it changed; MASKMILL_FUZZ looks for new ones.
hypothesis.settings.register_profile("maskmill", derandomize="MASKMILL_FUZZ" not in os.environ, database=None)
hypothesis.settings.load_profile("maskmill")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Where workers share the cores, undo what a training in this process has set."""
    yield
    if SHARED and (torch := sys.modules.get("torch")):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def maskmill() -> Maskmill:
    """Runs a command line; fails with its output unless it ends with the expected exit code.

    In this process, to save the seconds that importing torch takes (the ranks of a training run are processes in any
    case, and so are several workers), or with `process=True` as a user would."""

    def run(
        *arguments: str, code: int = 0, cwd: Path | None = None, process: bool = False
    ) -> subprocess.CompletedProcess[str]:
        result = _as_process(arguments, cwd) if process else _in_process(arguments, cwd)
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run


class Here(Executor):
    """A pool without a process: each task is done as it is submitted, on copies, as of another process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future:
        done: Future = Future()
        try:
            function, arguments, named = pickle.loads(pickle.dumps((function, arguments, named)))
            done.set_result(pickle.loads(pickle.dumps(function(*arguments, **named))))
        except Exception as error:
            done.set_exception(error)
        return done


@contextlib.contextmanager
def _worker_here() -> Iterator[None]:
    from data_pipeline.stages.executors import LocalProcesses

    start = LocalProcesses.start

    def started(self: LocalProcesses) -> Executor:
        return Here() if self.count == 1 else start(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "start", started)
        patch.setenv("TOKENIZERS_PARALLELISM", "false")  # as a worker sets it for itself
        yield


@pytest.fixture(scope="module")
def worker_here() -> Iterator[None]:
    """Where one worker is asked for it is this process, which saves the imports of another."""
    with _worker_here():
        yield


def _as_process(arguments: tuple[str, ...], cwd: Path | None) -> subprocess.CompletedProcess[str]:
    environment = environ(COLUMNS="200")
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=300,
        check=False,
    )


def _in_process(arguments: tuple[str, ...], cwd: Path | None) -> subprocess.CompletedProcess[str]:
    from launch import app, cli

    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        pytest.MonkeyPatch.context() as patch,
        _descriptor(1, out.fileno()),
        _descriptor(2, err.fileno()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _worker_here(),
    ):
        patch.setattr(sys, "argv", ["maskmill", *arguments])
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("COLUMNS", "200")
        patch.setattr(app.console, "width", 200)  # it may have been made before, of another width
        patch.chdir(cwd or Path.cwd())
        code = 0
        try:
            cli.main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        for file in (out, err):
            file.flush()
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


@contextlib.contextmanager
def _descriptor(number: int, target: int) -> Iterator[None]:
    """The file descriptor `number` leads to `target`, for child processes too."""
    saved = os.dup(number)
    os.dup2(target, number)
    try:
        yield
    finally:
        os.dup2(saved, number)
        os.close(saved)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, maskmill: Maskmill) -> list[str]:
    """Settings of a tiny run whose vocabulary and pair shards are ready; `run.dir` is the test's to choose."""
    folder = tmp_path_factory.mktemp("tiny")
    write_text(folder / "text.txt")
    settings = [
        f"data.sources={folder}/text.txt",
        f"data.vocab={folder}/vocabulary",
        f"data.out={folder}/shards",
        *TINY,
    ]
    maskmill("vocab", "demo", *settings)
    maskmill("prepare", "demo", *settings)
    return settings


@pytest.fixture
def here() -> Iterator[None]:
    """`maskmill train` is this process, as if a launcher had started it as the only rank."""
    with as_only_rank():
        yield


@pytest.fixture
def study_here(here: None, maskmill: Maskmill) -> Iterator[None]:
    """What a study starts as processes of its own, as `maskmill train`, is this process, which saves their imports; but
    `maskmill vocab`, the first of them, which is cheap."""
    from launch.studies import budget, read
    from launch.studies import run as carry_out
    from launch.studies import run as cells
    from launch.studies import run as score

    process = read.maskmill

    def run(arguments: Sequence[str], log: Path) -> tuple[int, str]:
        if arguments[0] == "vocab":
            return process(arguments, log)
        result = _in_process(tuple(arguments), None)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(result.stdout + result.stderr)
        return result.returncode, result.stdout + result.stderr

    with pytest.MonkeyPatch.context() as patch:
        for module in (carry_out, cells, score, budget):
            patch.setattr(module, "maskmill", run)
        yield


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of an S3 server with one empty bucket, and an environment that leads there."""
    import fsspec
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()  # those of another module know the address of its own server

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",  # the client's waits are seconds each; `unreliable` raises it
        }.items():
            patch.setenv(name, value)
        urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST")).close()
        fsspec.filesystem("s3").mkdir(BUCKET)
        yield url
        server.stop()
    S3FileSystem.clear_instance_cache()
