"""What W&B is given of a run's lines, how what it has not is found, and when somebody is alerted."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from pretrain.config.settings import MonitorSettings, RunConfig
from pretrain.distributed.world import World
from pretrain.monitoring import tracker, wandb_run
from pretrain.monitoring import tracker as monitor
from pretrain.monitoring.tracker import Alerts, disk_nearly_full
from pretrain.monitoring.wandb_run import by_layer, by_rank, point_of
from pretrain.run import metrics_log
from pretrain.run.causes import HINTS, OUTLIER, cause_of
from pretrain.run.events import LINES_LOST, Uploaded, append_event, reconciled
from pretrain.run.files import EVENTS, WANDB
from pretrain.training.guard import Guard
from pretrain.training.progress import Position
from pretrain.training.rank_timing import Lap, RankPace, slowdowns


class Server:
    """Stands in for one run on W&B's server; `takes` of what it is sent."""

    def __init__(self) -> None:
        self.points_: list[dict[str, Any]] = []
        self.alerts: list[str] = []
        self.takes = math.inf
        self.ended: list[tuple[int, bool]] = []

    def steps(self) -> list[int]:
        return [point["step"] for point in self.points_]


class Connection:
    """One attempt of it, as connection.Connection."""

    def __init__(self, server: Server, online: bool) -> None:
        self._server, self.online, self.points = server, online, len(server.points_)

    def log(self, point: dict[str, Any]) -> None:
        if self.online and len(self._server.points_) < self._server.takes:
            self._server.points_.append(point)

    def alert(self, title: str, text: str, error: bool, wait: float) -> None:
        self._server.alerts.append(title)

    def finish(self, exit_code: int = 0, preempted: bool = False) -> bool:
        self._server.ended.append((exit_code, preempted))
        return self.online and self._server.takes == math.inf


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """W&B, reached online."""
    server = Server()
    monkeypatch.setattr(tracker, "begin", lambda stage: Connection(server, online=True))
    return server


def attempt_of(folder: Path, *steps: int, status: str = "stopped") -> None:
    """Logs these steps and ends."""
    one = monitor.open_tracker(folder, MonitorSettings(tracker="wandb"), "abc", {}, first_rank=True)
    for step in steps:
        one.log({"kind": "train", "step": step, "loss": 1.5})
    one.close(status)


def test_each_line_is_sent_once_over_several_attempts(tmp_path: Path, server: Server) -> None:
    attempt_of(tmp_path, 1, 2, 3)
    assert metrics_log.cut_metrics(tmp_path, 2) == 1  # step 3 is done again
    attempt_of(tmp_path, 3, 4, status="finished")
    assert server.steps() == [1, 2, 3, 3, 4], "W&B takes nothing back: the step done again is there twice"
    assert [line["step"] for line in metrics_log.read_metrics(tmp_path)] == [1, 2, 3, 4]
    assert server.ended == [(3, True), (0, False)], "an attempt that a signal ended is preempted, no success"
    assert all("kind" not in point for point in server.points_), "only numbers make points"


def test_what_was_on_the_way_when_a_run_was_killed_is_sent_again(tmp_path: Path, server: Server) -> None:
    server.takes = 3
    attempt_of(tmp_path, 1, 2, 3, 4, 5)
    server.takes = math.inf
    attempt_of(tmp_path, 6)
    assert server.steps() == [1, 2, 3, 4, 5, 6]
    server.takes = 8
    attempt_of(tmp_path, 7, 8, 9, 10)
    metrics_log.cut_metrics(tmp_path, 9)  # of the two lost ones, 10 is cut
    server.takes = math.inf
    attempt_of(tmp_path, 10)
    assert server.steps() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_an_online_attempt_first_sends_what_offline_attempts_logged(tmp_path: Path, server: Server) -> None:
    offline = monitor.open_tracker(tmp_path, MonitorSettings(), "abc", {}, first_rank=True)
    offline.log({"kind": "train", "step": 1})
    offline.log({"kind": "train", "step": 2})
    attempt_of(tmp_path, 3)
    assert server.steps() == [1, 2, 3]


@pytest.mark.parametrize(
    ("known", "on_server", "lines", "expected"),
    [
        (None, 0, 5, 0),
        (None, 3, 5, 3),  # sent by `wandb sync`, or by a run folder that a mirror brought back
        (Uploaded(5, 5), 5, 5, 5),
        (Uploaded(5, 5), 2, 5, 2),  # three were on the way
        (Uploaded(2, 5, cut=3), 2, 2, 2),  # the three that were on the way have been cut
        (Uploaded(3, 5, cut=2), 2, 3, 2),  # two of them have, one has not
        (Uploaded(3, 3), 5, 5, 5),  # the file lagged behind, on a full disk
        (Uploaded(5, 5), 0, 5, 0),  # the run was deleted on the server
    ],
)
def test_the_server_says_what_it_has(
    known: Uploaded | None, on_server: int, lines: int, expected: int
) -> None:
    found = reconciled(known, on_server, lines)
    assert (found.lines, found.points, found.cut) == (expected, on_server, 0)


def test_a_failure_of_wandb_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Connection):
        def log(self, point: dict[str, Any]) -> None:
            raise OSError("no more")

    monkeypatch.setattr(tracker, "begin", lambda stage: Broken(Server(), online=True))
    attempt_of(tmp_path, 1, 2)
    assert [line["step"] for line in metrics_log.read_metrics(tmp_path)] == [1, 2]
    assert capsys.readouterr().out.count("W&B failed, continuing without it") == 1


def test_a_server_out_of_reach_is_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(stage: wandb_run.Stage, online: bool) -> Connection:
        if online:
            raise TimeoutError("no route to host")
        return Connection(Server(), online)

    monkeypatch.setattr(wandb_run, "start", start)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    attempt_of(tmp_path, 1)
    assert "continuing offline: no route to host" in capsys.readouterr().out
    assert Uploaded.read(tmp_path, WANDB) is None, "nothing was sent"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({}, "no key: `wandb login`, or WANDB_API_KEY"), ({"WANDB_MODE": "offline"}, "WANDB_MODE=offline")],
)
def test_an_offline_run_says_why_where_it_is_and_how_to_send_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    reason: str,
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(wandb_run, "start", lambda stage, online: Connection(Server(), online))
    monkeypatch.setattr(tracker, "begin", wandb_run.begin)
    attempt_of(tmp_path, 1)
    first, last = capsys.readouterr().out.splitlines()
    assert first == (
        f"maskmill: W&B is offline ({reason}): this run is kept in {tmp_path}/wandb. "
        f"`maskmill sync {tmp_path}` sends it, `wandb leet {tmp_path}/wandb` shows it here"
    )
    assert last == f"maskmill: W&B has not seen this run: `maskmill sync {tmp_path}` sends it"


def test_an_online_run_says_nothing_of_it(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt_of(tmp_path, 1)
    assert capsys.readouterr().out == ""


def test_a_key_in_a_file_counts_for_its_host_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not wandb_run.has_key()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password x\n")
    assert wandb_run.has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not wandb_run.has_key()


def test_rows_of_the_heat_maps() -> None:
    ratios = {
        "trust_ratio/encoder.embeddings.word.weight": 4.0,
        "trust_ratio/encoder.layers.0.attention.weight": 1.0,
        "trust_ratio/encoder.layers.0.output.weight": 3.0,
        "trust_ratio/encoder.layers.2.output.weight": 5.0,
        "trust_ratio/mlm_head.dense.weight": 6.0,
    }
    assert by_layer(ratios).heights == pytest.approx([4.0, 3.0**0.5, 0.0, 5.0, 6.0])
    assert by_layer(ratios).edges == [0, 1, 2, 3, 4, 5]
    assert by_rank([1.0, 2.0]) == ([1.0, 2.0], [0.0, 1.0, 2.0])
    many = by_rank([float(rank) for rank in range(1000)])
    assert (many.heights[:2], many.edges[:2], len(many.heights)) == ([1.0, 3.0], [0.0, 2.0], 500)


def test_ranks_have_curves_as_long_as_they_are_few() -> None:
    few = point_of({"step": 3, "step_ms_by_rank": [10.0, 20.0], "slowdowns": ["x"], "phase": "a"})
    assert set(few) == {"step", "step_ms_by_rank", "step_ms/rank_0", "step_ms/rank_1"}
    assert set(point_of({"step": 3, "step_ms_by_rank": [1.0] * 17})) == {"step", "step_ms_by_rank"}


def refusal(spike: bool) -> str:
    """What the real guard says of a batch."""
    config = RunConfig()
    config.train.on_spike, config.train.on_nan, config.train.spike_window = "skip", "skip", 4
    position = Position()
    guard = Guard(config, position, World(), "fp32")
    position.losses += [1.0, 1.0, 1.0, 1.01]
    position.batch = 8
    guard._is_spike = spike
    return guard.refused(position, empty=False)[1]


def rank_pace(waited: float = 0.0, forward: float = 0.1) -> RankPace:
    return RankPace(9, 1.0, waited, forward, forward, Lap(9, 1.0, 0.0, forward, 1))


def test_causes_are_told_from_what_the_run_really_says(tmp_path: Path) -> None:
    assert cause_of(refusal(spike=False)) == "nan"
    assert cause_of(refusal(spike=True)) == "spike"
    assert [cause_of(line) for line in slowdowns([rank_pace(waited=0.5)])] == ["data stall"]
    slow = slowdowns([rank_pace(), rank_pace(forward=0.9), rank_pace()])
    assert [cause_of(line) for line in slow] == ["slow rank"]
    outlier = "an outlier: step 45 took 1,450 ms"
    assert cause_of(outlier) == OUTLIER
    assert Alerts(tmp_path, "run", 60.0).due(OUTLIER, outlier) is None, "one slow step disturbs nobody"


def test_one_alert_a_cause_and_interval_over_all_attempts(tmp_path: Path) -> None:
    now = 1000.0
    first = Alerts(tmp_path, "run", every=60, clock=lambda: now)
    alert = first.due("nan", "the gradient of batch 3 is not finite")
    assert alert is not None
    assert alert.title == "run: nan"
    assert alert.text == f"the gradient of batch 3 is not finite\n{HINTS['nan']}"
    assert first.due("nan", "again") is None
    assert first.due("spike", "another cause") is not None
    now += 59
    assert Alerts(tmp_path, "run", 60, clock=lambda: now).due("nan", "in the next attempt") is None
    now += 1
    assert Alerts(tmp_path, "run", 60, clock=lambda: now).due("nan", "later") is not None
    assert first.due("", "no cause") is None
    assert first.due("disk", "") is None, "nothing to tell"
    assert Alerts(tmp_path / "none", "run", 0).due("nan", "switched off") is None


def test_no_rounding_keeps_a_first_alert_back(tmp_path: Path) -> None:
    for now in (1764251234.567, 1764251234.1, 1.7e9):
        for every in (0.1, 0.001, 5000.3):
            assert (
                Alerts(tmp_path / "none", "run", every, clock=lambda now=now: now).due("nan", "x") is not None
            )


@pytest.mark.parametrize("jump", [3600, -3600, -365 * 86_400])
def test_alerts_go_on_after_the_clock_was_set(tmp_path: Path, jump: float) -> None:
    now = 1e9
    tracker = Alerts(tmp_path, "run", every=60, clock=lambda: now)
    assert tracker.due("failed", "at first") is not None
    now += jump
    assert tracker.due("failed", "after the clock was set") is not None
    now += 59
    assert Alerts(tmp_path, "run", 60, clock=lambda: now).due("failed", "again") is None
    now += 1
    assert tracker.due("failed", "later") is not None


def test_alerts_reach_wandb(tmp_path: Path, server: Server) -> None:
    one = monitor.open_tracker(tmp_path, MonitorSettings(tracker="wandb"), "abc", {}, first_rank=True)
    one.alert("restart", "again")
    one.alert("restart", "and again")
    one.close()
    assert server.alerts == [f"{tmp_path.name}: restart"]


def test_a_disk_is_nearly_full_where_two_checkpoints_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = tracker.shutil.disk_usage(tmp_path)._replace(free=10_000_000)
    monkeypatch.setattr(tracker.shutil, "disk_usage", lambda path: usage)
    assert disk_nearly_full(tmp_path, 5_000_000) == ""
    assert "0.01 GB free, and a checkpoint takes 0.01 GB" in disk_nearly_full(tmp_path, 5_000_001)
    assert disk_nearly_full(tmp_path / "gone", 1.0) == ""


@pytest.mark.parametrize(
    "event",
    ["", "{", "[]", "null", '{"event": "alerted", "cause": "nan"}', '{"event": "uploaded", "lines": "x"}'],
)
def test_a_torn_event_of_counts_or_times_is_none(tmp_path: Path, event: str) -> None:
    (tmp_path / EVENTS).write_text(f"{event}\n")
    assert Uploaded.read(tmp_path, WANDB) is None
    assert Alerts(tmp_path, "run", 60).due("nan", "x") is not None


@pytest.mark.parametrize("kept", [10, 20, 40])
@pytest.mark.parametrize("sent", [0, 15, 30, 45, 50])
def test_lines_that_a_killed_attempt_passed_on_are_counted_by_the_server(
    tmp_path: Path, kept: int, sent: int
) -> None:
    """It has counted 10 of 50; then others, that went on without W&B, have cut and written lines."""
    Uploaded(10, 10).log(tmp_path, WANDB)
    lines = [{"step": step} for step in range(kept + 1, 51)]
    append_event(tmp_path, LINES_LOST, step=kept, kept=kept, lines=lines, damaged=[])
    on_server = max(10, sent)
    assert reconciled(Uploaded.read(tmp_path, WANDB), on_server, 60).lines == min(kept, on_server)
    more = [{"step": step} for step in range(kept + 6, 71)]
    append_event(tmp_path, LINES_LOST, step=kept + 5, kept=kept + 5, lines=more, damaged=[])
    assert reconciled(Uploaded.read(tmp_path, WANDB), on_server, 60).lines == min(kept, on_server)


def test_the_code_is_named_by_version_and_commit() -> None:
    found = wandb_run.code_version()
    assert found["version"] == json.loads(json.dumps(found["version"]))
    if (wandb_run.ROOT / ".git").exists():
        assert len(found["commit"]) == 40


def test_sync_of_no_run_folder_and_without_a_key_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretrain.monitoring.tracker import sync_run

    with pytest.raises(UserError, match="not a run folder"):
        sync_run(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 2, "identity": {}, "id": "abc", "attempts": 1}')
    (tmp_path / "config.yaml").write_text("monitor: {tracker: wandb}\n")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(UserError, match="wandb login"):
        sync_run(tmp_path)


@pytest.mark.parametrize(
    ("error", "said", "is_key"),
    [
        (
            "returned error 401: {'errors':[{'message':'user is not logged in'}]}",
            "refuses the key (401",
            True,
        ),
        ("AuthenticationError: API key is not valid", "refuses the key (401", True),
        ("returned error 403: permission denied", "forbids this to the key (403)", True),
        ("dial tcp 127.0.0.1:9: connect: connection refused", "refuses connections", False),
        ("[Errno 111] Connection refused", "refuses connections", False),
        ("run 4012 timed out after 401.5 s of nothing", "run 4012", False),
        ("\nno route to host\nmore", "no route to host", False),
    ],
)
def test_why_wandb_took_nothing_is_said_in_one_line(
    error: str, said: str, is_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    found = wandb_run.why(RuntimeError(error))
    assert said in found
    assert "\n" not in found
    assert wandb_run.is_refused_key(RuntimeError(error)) == is_key
