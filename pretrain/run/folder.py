"""Read and write config.yaml, run.json and summary.json of a run folder, with their seals, its heartbeat and its lock.

run.json and summary.json are sealed: their `sha256` is that of their other fields. What decides something by them
(train, export, inspect, sync) refuses a changed one. What only shows a run (status, report) says so and goes on: a run
must stay observable when one of its files is damaged. A file of an older version has no seal and is taken as it is.
config.yaml ends with the hash of its other lines, by the same rules.
"""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from data_pipeline.errors import UserError, first_line, redact
from data_pipeline.io.files import SEAL, open_to_write, refuse_links, seal_holds, sealed_json, write_whole
from pretrain.config.renamed import with_new_keys, with_new_names
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import merged, parse_yaml, schema, typed
from pretrain.run.files import (
    CONFIG,
    HEARTBEAT,
    LOCK,
    OUTPUTS,
    RUN,
    STATE,
    SUMMARY,
    is_count,
    is_number,
    number,
    object_of,
    replace_file,
    table,
    text_of,
)
from pretrain.run.metrics_log import wrong_figure

# Read and write run.json, config.yaml and summary.json, and check their seals.


SEALS_CONFIG = "config_has_sha256"
"""The field of run.json that says that config.yaml ends with its hash: one that was cut off is missed."""
FORMAT = 2
"""Version of the files of a run folder, `format` in run.json (format 1 has no such key): raised by one when a key is
renamed. Checkpoints have their own (checkpoint/store.py)."""
OTHER_VERSION = (
    "finish and export it with the Maskmill that wrote it; init_from=EXPORT starts a new run from its weights"
)
CHANGED = "was changed since it was written: its sha256 does not hold"


def model_folders(folder: Path) -> list[Path]:
    """Return the Hugging Face models in `folder`: itself, or the folders in it if the objective exports several. Empty
    for another folder; the export of a run folder is not searched."""
    if (folder / "config.json").is_file():
        return [folder]
    return [] if (folder / RUN).is_file() else sorted(path.parent for path in folder.glob("*/config.json"))


def refuse_another(then: dict[str, Any], now: dict[str, Any], where: object, remedy: str) -> None:
    """Raise UserError, with the settings that differ, if the run identity `then` differs from `now`. A setting that
    `then` is older than had its default."""
    then = with_new_keys(then)
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
    renamed: dict[str, Any] = with_new_names(values, where)[0]
    return renamed


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
    unsealed = [
        name for name in (RUN, SUMMARY) if (folder / name).is_file() and SEAL not in table(folder / name)
    ]
    has_hash = not (folder / CONFIG).is_file() or _SEAL_LINE in text_of(folder / CONFIG)
    return unsealed if has_hash else [*unsealed, CONFIG]


def shown_table(path: Path, warnings: list[str]) -> dict[str, Any]:
    """Read a sealed JSON object to show it: without its seal, empty if there is none, as it is where the seal does not
    hold, which is added to `warnings`."""
    values = table(path)
    if seal_holds(values) is False:
        warnings.append(f"{path.name} {CHANGED}; what is shown from it may be wrong.")
    return {name: value for name, value in values.items() if name != SEAL}


# Write and read the heartbeat. metrics.jsonl gets a line every train.log_every steps, and none while the model is
# evaluated or saved; the heartbeat lets an observer on another machine distinguish a long wait from a dead run.


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


# Lock the folder for the attempt that trains in it.


LOCK_WAIT_SECONDS = 5.0
"""How long a killed process may take to exit, so that the same command can be rerun at once."""


def lock(folder: Path) -> Any:
    """Create and lock the run folder until the process ends or the result is closed. Raises UserError if another
    process still holds the lock after LOCK_WAIT_SECONDS."""
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder, (*STATE, *OUTPUTS))
    file = open_to_write(folder / LOCK, "w")
    give_up = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < give_up:
                time.sleep(0.1)
                continue
            file.close()
            raise UserError(
                "another process is training here", where=folder, remedy="wait for it, or end it"
            ) from None
        except OSError:
            pass  # a file system without locks
        return file


def refuse_locked(folder: Path) -> None:
    """Raise UserError if another attempt of the run is active. Creates nothing and keeps no lock."""
    refuse_links(folder, (*STATE, *OUTPUTS))
    if (folder / LOCK).is_file():
        lock(folder).close()
