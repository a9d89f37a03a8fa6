"""Read and write a run folder: its identity, settings and summary, its attempts and events, and its heartbeat.

RUN/config.yaml       resolved settings        RUN/metrics.jsonl     one line per log step
RUN/run.json          identity, W&B run id     RUN/summary.json      status and newest figures
RUN/checkpoints/      see checkpoint/store.py  RUN/logs/             output of ranks other than the first, stacks
RUN/events.jsonl      one line per disturbance: skipped batches, rollbacks, damaged data, failed saves, hangs
RUN/attempts.jsonl    one line per start, checkpoint and end of the run's attempts
RUN/.heartbeat.json   the first rank's step, activity and process

run.json and summary.json are sealed: their `sha256` is that of their other fields. What decides something by them
(train, export, inspect, sync) refuses a changed one. What only shows a run (status, report) says so and goes on: a run
must stay observable when one of its files is damaged. A file of an older version has no seal and is taken as it is.
config.yaml ends with the hash of its other lines, by the same rules.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from data_pipeline.errors import UserError, first_line, redact
from data_pipeline.io.files import SEAL, seal_holds, sealed_json, write_whole
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import merged, parse_yaml, schema, typed
from pretrain.run.files import (
    append,
    is_count,
    is_number,
    number,
    object_of,
    replace_file,
    table,
    tables,
    text_of,
)
from pretrain.run.metrics_log import wrong_figure

# Log the attempts and the disturbances of a run, and read them back. An attempt lasts from one start of the run to its
# end. A killed attempt cannot log its end: the next one does, from the last summary.json. attempts.jsonl is never cut,
# so it also counts the steps that were done twice.


ATTEMPTS, EVENTS = "attempts.jsonl", "events.jsonl"
NOT_SAVED, NOT_MIRRORED, HANG = "not saved", "not mirrored", "hang"
"""Kinds of events that are no skipped batches: a save or its copy that failed, and a run that hung."""
SPENT = "attempt_seconds"
"""Key of summary.json: seconds of the newest attempt, including those lost to a kill."""
LOST = "lost"
"""Status of an attempt that did not log its end: it was killed, it crashed, or its machine is gone."""


class Save(NamedTuple):
    """A completed checkpoint."""

    step: int
    at: datetime
    seconds: float  # from its start until it was complete
    blocked: float  # of these, seconds that training waited while tensors were copied
    bytes: int


@dataclass(frozen=True)
class Attempt:
    """One attempt; `ended` of the newest one is None while it runs."""

    number: int
    started: datetime
    first: int  # the step from which it resumed
    seconds: float = 0.0  # seconds of training before it, in all attempts
    ended: datetime | None = None
    status: str = "running"
    last: int | None = None  # the step that it reached
    error: str = ""
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    device: str = ""
    """Name of the first rank's GPU or processor."""
    device_type: str = ""
    """cuda or cpu."""
    threads: int = 0
    """CPU threads of each rank."""
    spent: float = 0.0
    """Seconds from the moment the engine was ready to the last record."""
    saves: list[Save] = field(default_factory=list)

    @property
    def device_hours(self) -> float:
        """GPU-hours; on CPUs the hours of all threads."""
        return self.spent * self.ranks * (1 if self.device_type == "cuda" else self.threads) / 3600

    def moment(self, seconds: float) -> datetime:
        """Return the time of day at which the run had trained for `seconds`, over all attempts."""
        return self.started + timedelta(seconds=max(0.0, seconds - self.seconds))


class AttemptLog:
    """Write attempts.jsonl; do nothing on ranks other than the first. A folder that is full for a while loses lines,
    but does not end the run."""

    def __init__(self, folder: Path, writes: bool) -> None:
        self._path, self._writes = folder / ATTEMPTS, writes

    def started(self, step: int, summary: dict[str, Any], before: dict[str, Any]) -> None:
        """Log the start of an attempt at `step`, and the end of the previous one if it is missing. `summary`: what this
        attempt will write; `before`: what the previous one wrote last."""
        attempts = read_attempts(self._path.parent) if self._writes else []
        if attempts and attempts[-1].ended is None:
            seconds = float(before.get("seconds", attempts[-1].seconds))
            at = attempts[-1].moment(seconds).isoformat(timespec="seconds")
            reached = max(int(before.get("step", 0)), attempts[-1].first)
            spent = before.get(SPENT, 0.0)
            self._write({"event": "ended", "at": at, "status": LOST, "step": reached, "spent": spent})
        where = {name: summary.get(name) for name in ("ranks", "hosts", "device", "device_type", "threads")}
        self._write(
            {"event": "started", "at": _now(), "step": step, "seconds": summary.get("seconds", 0.0)} | where
        )

    def saved(self, step: int, seconds: float, blocked: float, size: int) -> None:
        """Log that the checkpoint of `step` is complete."""
        self._write(
            {
                "event": "saved",
                "at": _now(),
                "step": step,
                "seconds": seconds,
                "blocked_seconds": blocked,
                "bytes": size,
            }
        )

    def ended(self, step: int, summary: dict[str, Any]) -> None:
        """Log the end of this attempt, with the status and the error from its `summary`."""
        words = {
            "status": summary["status"],
            "error": summary.get("error", ""),
            "spent": summary.get(SPENT, 0.0),
        }
        self._write({"event": "ended", "at": _now(), "step": step, **words})

    def _write(self, line: dict[str, Any]) -> None:
        if self._writes:
            with suppress(OSError):
                append(self._path, json.dumps(line).encode() + b"\n")


def log_event(folder: Path, kind: str, step: int, text: str, **where: int) -> None:
    """Append a disturbance of a run to events.jsonl, which no later attempt cuts. Raises OSError where the folder is
    full or gone."""
    line = {"event": kind, **where, "step": step, "text": text, "at": _now()}
    append(folder / EVENTS, json.dumps(line).encode() + b"\n")


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the disturbances of the run in `folder`, oldest first; torn lines are skipped."""
    return list(tables(text_of(folder / EVENTS)))


def events_since(folder: Path, kind: str, since: datetime) -> list[dict[str, Any]]:
    """Return the disturbances of a kind since a moment, oldest first."""
    return [one for one in read_events(folder) if one.get("event") == kind and _at(one) >= since]


def why_not_saved(folder: Path) -> str:
    """Return why the newest attempt's newest save failed; empty where it did not, or none was tried."""
    attempts = read_attempts(folder)
    if not attempts:
        return ""
    since = max([attempts[-1].started, *(save.at for save in attempts[-1].saves)])
    failed = events_since(folder, NOT_SAVED, since)
    return str(failed[-1].get("text") or "") if failed else ""


def _at(event: Mapping[str, Any]) -> datetime:
    """Return when an event was; long ago where it does not say."""
    with suppress(KeyError, ValueError, TypeError, OverflowError):
        found = datetime.fromisoformat(event["at"])
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return datetime.min.replace(tzinfo=UTC)


def read_attempts(folder: Path, summary: Mapping[str, Any] | None = None) -> list[Attempt]:
    """Read the attempts of the run in `folder`, oldest first; torn or malformed lines are skipped. `summary`:
    summary.json, which has the seconds of an attempt that has not ended."""
    attempts: list[Attempt] = []
    for line in tables(text_of(folder / ATTEMPTS)):
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            _take(attempts, line, datetime.fromisoformat(line["at"]))
    if attempts and attempts[-1].ended is None:
        with suppress(ValueError, TypeError):
            attempts[-1] = replace(attempts[-1], spent=float((summary or {}).get(SPENT, 0.0)))
    return attempts


def _take(attempts: list[Attempt], line: dict[str, Any], at: datetime) -> None:
    if at.tzinfo is None:
        raise ValueError("no time zone")
    step = int(line["step"])
    if line["event"] == "started":
        hosts = tuple(str(host) for host in line.get("hosts") or ())
        device, ranks = str(line.get("device") or ""), int(line.get("ranks") or 0)
        seconds = float(line.get("seconds") or 0.0)
        kind, threads = str(line.get("device_type") or ""), int(line.get("threads") or 0)
        where: dict[str, Any] = {
            "ranks": ranks,
            "hosts": hosts,
            "device": device,
            "device_type": kind,
            "threads": threads,
        }
        attempts.append(Attempt(len(attempts) + 1, at, step, seconds, **where))
    elif line["event"] == "saved" and attempts:
        attempts[-1].saves.append(
            Save(step, at, float(line["seconds"]), float(line["blocked_seconds"]), int(line["bytes"]))
        )
    elif line["event"] == "ended" and attempts:
        status, error = str(line["status"]), str(line.get("error") or "")
        spent = float(line.get("spent") or 0.0)
        attempts[-1] = replace(attempts[-1], ended=at, status=status, last=step, error=error, spent=spent)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Read and write run.json, config.yaml and summary.json, and check their seals.


RUN, CONFIG, SUMMARY = "run.json", "config.yaml", "summary.json"
SEALS_CONFIG = "config_has_sha256"
"""The field of run.json that says that config.yaml ends with its hash: one that was cut off is missed."""
FORMAT = 2
"""Version of the files of a run folder, `format` in run.json (format 1 has no such key): raised by one when a key is
renamed. Checkpoints have their own (checkpoint/store.py)."""
OTHER_VERSION = (
    "finish and export it with the Maskmill that wrote it; init_from=EXPORT starts a new run from its weights"
)
CHANGED = "was changed since it was written: its sha256 does not hold"
EXPORT, SAMPLES = "export", "samples.json"
"""The folder of the exported model, and the blanks that the model filled."""


def model_folders(folder: Path) -> list[Path]:
    """Return the Hugging Face models in `folder`: itself, or the folders in it if the objective exports several. Empty
    for another folder; the export of a run folder is not searched."""
    if (folder / "config.json").is_file():
        return [folder]
    return [] if (folder / RUN).is_file() else sorted(path.parent for path in folder.glob("*/config.json"))


def refuse_another(then: dict[str, Any], now: dict[str, Any], where: object, remedy: str) -> None:
    """Raise UserError, with the settings that differ, if the run identity `then` differs from `now`. A setting that
    `then` is older than had its default."""
    recorded = {key: then.get(key, _default_before(key, then)) for key in now}
    differing = [
        f"{key}={value} (there: {recorded[key]})" for key, value in now.items() if recorded[key] != value
    ]
    if differing:
        raise UserError(
            f"holds another run: {', '.join(differing)}",
            where=where,
            remedy=f"{remedy}, or the settings that it was made with",
        )


def _default_before(key: str, then: dict[str, Any]) -> Any:
    """Return the default of the setting `key`, perhaps behind the name of a phase, if the identity `then` has it of no
    phase: it is older than the setting. Else None."""
    for name in (key, key.partition(".")[2]):
        value: Any = RunConfig()
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is not None and not is_dataclass(value):
            return None if any(f".{known}".endswith(f".{name}") for known in then) else value
    return None


def read_config(run: Path) -> RunConfig:
    """Read the resolved settings of a run folder."""
    refuse_other_format(table(run / RUN), run)
    if not (run / CONFIG).is_file():
        raise UserError("not a run folder", where=run, expected=f"a folder with {CONFIG}")
    return _config_of(read_settings(run), run / CONFIG)


def read_settings(run: Path) -> dict[str, Any]:
    """Read the values in config.yaml of a run folder. Raises UserError, also if the file was cut short or changed since
    the run wrote it."""
    path = run / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"malformed: {first_line(error)}", where=path) from None
    return _parsed_settings(text, path, is_sealed=table(run / RUN).get(SEALS_CONFIG) is True)


def parsed_config(text: str, where: object) -> RunConfig:
    """Parse `text`, that of a config.yaml. Raises UserError."""
    return _config_of(_parsed_settings(text, where, is_sealed=False), where)


def sealed_config(config: RunConfig) -> bytes:
    """Return the text of config.yaml: every setting, credentials redacted, and a last line with the hash of the others.
    A YAML file that is cut short is YAML as well, whose missing settings would have their defaults."""
    return sealed_lines(redact(OmegaConf.to_yaml(OmegaConf.structured(config))))


def sealed_lines(text: str) -> bytes:
    """Return the text of a config.yaml with its last line as it has to be, whatever it was."""
    body = (text.rpartition(_SEAL_LINE)[0] or text).encode()
    return body + f"{_SEAL_LINE}{sha256(body).hexdigest()}\n".encode()


_SEAL_LINE = "# sha256 of the lines above: "


def _parsed_settings(text: str, where: object, *, is_sealed: bool) -> dict[str, Any]:
    """Parse the text of a config.yaml. `is_sealed`: whether run.json says that it has a hash; without it a file that
    an older version wrote passes."""
    body, mark, digest = text.rpartition(_SEAL_LINE)
    is_whole = digest == f"{sha256(body.encode()).hexdigest()}\n" if mark else not is_sealed
    if not is_whole or (not mark and text.rpartition("\n")[2].startswith("#")):
        raise UserError(
            "was cut short or changed since the run wrote it",
            where=where,
            remedy="restore it; or remove it, and `maskmill train` with the run's settings writes it anew",
        )
    values = parse_yaml(text, where)
    if not isinstance(values, dict):
        raise UserError("malformed", where=where, expected="a mapping of settings")
    return values


def _config_of(values: dict[str, Any], where: object) -> RunConfig:
    config = typed(merged(schema(), values, where), where)
    assert isinstance(config, RunConfig)
    return config


def read_run(folder: Path) -> dict[str, Any] | None:
    """Read run.json of `folder`; None if there is none."""
    path = folder / RUN
    if not path.is_file():
        return None
    return parsed_run(path.read_bytes(), path)


def parsed_run(data: bytes, where: object) -> dict[str, Any]:
    """Parse `data`, the bytes of a run.json, and return it without its seal. Raises UserError, also if that does not
    hold."""
    remedy = "copy it back from checkpoint.mirror or a backup; of your own change, remove the field sha256"
    values = _without_seal(object_of(data) or {}, where, remedy)
    if "identity" in values:
        refuse_other_format(values, where)
    if not (isinstance(values.get("identity"), dict) and is_count(values.get("attempts")) and "id" in values):
        raise UserError("malformed", where=where, expected="JSON that a run wrote: identity, id, attempts")
    return {**values, "id": str(values["id"])}


def _without_seal(values: dict[str, Any], where: object, remedy: str) -> dict[str, Any]:
    """Return the fields of a sealed file without the seal. Raises UserError if that does not hold."""
    if seal_holds(values) is False:
        raise UserError(CHANGED, where=where, remedy=remedy)
    return {name: value for name, value in values.items() if name != SEAL}


def refuse_other_format(values: dict[str, Any], where: object) -> None:
    """Raise UserError if `values`, those of a run.json, have another file format version than FORMAT. Values without an
    identity are not a run.json."""
    if "identity" in values and values.get("format", 1) != FORMAT:
        raise UserError(
            f"run folder of format {str(values.get('format', 1))[:20]}",
            where=where,
            expected=f"format {FORMAT}",
            remedy=OTHER_VERSION,
        )


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of `folder`, without its seal; empty if there is none. Raises UserError if it is not a summary,
    or was changed since."""
    path = folder / SUMMARY
    try:
        values = dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        remedy = "remove it: the run's next attempt writes it again from metrics.jsonl"
        values = _without_seal(values, path, remedy)
        counts = dict(dict(values.get("data", {})).get("held_out", {}))
        counts = {"examples": counts.get("examples", 0), **dict(counts.get("pair_labels", {}))}
        wrong = wrong_figure(values) or ", ".join(n for n, count in counts.items() if not is_number(count))
        values = {name: value for name, value in values.items() if value is not None}
        for phase in values.get("phases", []):
            str(phase["name"])
            wrong = wrong or ", ".join(key for key in _PHASE if not is_number(phase[key]))
            if phase["last"] is not None:  # unknown while a phase with train.minutes has not ended
                wrong = wrong or ("" if is_number(phase["last"]) else "last")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError("malformed", where=path, expected="JSON that a run wrote") from None
    if wrong:
        raise UserError(f"malformed: {wrong} is no number", where=path)
    return values


_PHASE = ("global_batch", "sequence_length", "lr")


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Replace summary.json as a whole."""
    write_whole(folder / SUMMARY, sealed_json(summary))


def not_sealed(folder: Path) -> list[str]:
    """Return the names of those files of the run that are there without a seal, since an older version wrote them."""
    found = [
        name for name in (RUN, SUMMARY) if (folder / name).is_file() and SEAL not in table(folder / name)
    ]
    has_hash = not (folder / CONFIG).is_file() or _SEAL_LINE in text_of(folder / CONFIG)
    return found if has_hash else [*found, CONFIG]


def shown_table(path: Path, warnings: list[str]) -> dict[str, Any]:
    """Read a sealed JSON object to show it: without its seal, empty if there is none, as it is where the seal does not
    hold, which is added to `warnings`."""
    values = table(path)
    if seal_holds(values) is False:
        warnings.append(f"{path.name} {CHANGED}; what is shown from it may be wrong.")
    return {name: value for name, value in values.items() if name != SEAL}


# Write and read the heartbeat. metrics.jsonl gets a line every train.log_every steps, and none while the model is
# evaluated or saved; the heartbeat lets an observer on another machine distinguish a long wait from a dead run.


HEARTBEAT = ".heartbeat.json"
STARTING, TRAINING, EVALUATING, SAVING = "starting", "training", "evaluating", "saving"
MIN_INTERVAL_SECONDS = 5.0
"""Minimum seconds between two writes with the same `doing`: frequent writes slow a shared folder down."""


class Heartbeat:
    """Write the heartbeat file of a run, on the first rank only."""

    def __init__(self, folder: Path, first_rank: bool) -> None:
        self._path = folder / HEARTBEAT if first_rank else None
        self._who = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pid_namespace": _pid_namespace(),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "attempt": table(folder / RUN).get("attempts"),
        }
        self._last, self._doing = 0.0, ""

    def write(self, step: int, doing: str) -> None:
        """Write the number of finished steps and the current activity. Ignores a folder that is full or gone."""
        if self._path is None or (
            doing == self._doing and time.monotonic() - self._last < MIN_INTERVAL_SECONDS
        ):
            return
        self._last, self._doing = time.monotonic(), doing
        words = {**self._who, **_since_boot(), "step": step, "doing": doing}
        with suppress(OSError):
            replace_file(self._path, json.dumps(words))


def read_heartbeat(folder: Path) -> dict[str, Any]:
    """Read the newest heartbeat; empty if there is none or it cannot be read."""
    try:
        values = table(folder / HEARTBEAT)
        return {**values, "step": int(values["step"]), "pid": int(values["pid"])}
    except (ValueError, KeyError, TypeError, OverflowError):
        return {}


def age_here(heartbeat: dict[str, Any]) -> float | None:
    """Return the seconds since it was written, by the clock that counts from this machine's start and that nobody sets;
    None if it was written on another machine, or before this one was restarted."""
    now, then = _since_boot(), number(heartbeat.get("uptime"))
    if not now or now["boot"] != heartbeat.get("boot") or then is None or then > now["uptime"]:
        return None
    return float(now["uptime"] - then)


def is_dead(heartbeat: dict[str, Any]) -> bool:
    """Return whether the process that wrote it is known to have ended: it ran on this machine and is gone. In another
    container, which numbers its processes separately, nothing is known: False."""
    if heartbeat.get("host") != socket.gethostname() or heartbeat.get("pid_namespace") != _pid_namespace():
        return False
    try:
        os.kill(heartbeat["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's
    return _is_zombie(heartbeat["pid"])


def _pid_namespace() -> str:
    """Return the PID namespace (Linux) of this process; empty elsewhere."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _since_boot() -> dict[str, Any]:
    """Return which start of which machine this is, and the seconds since then (Linux); empty elsewhere."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "uptime": round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)}
    return {}


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
