"""Choose the jobs of a request that are left to do, and submit them to Slurm or write a batch script that does.

sbatch gets a list of arguments and an environment, never a shell line. The script is for people to read and run: it
consists of shell lines, in which every word is quoted.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError, redact
from data_pipeline.io.files import own_folder, write_whole
from launch.jobs import STAGES, Job, Request, prepared, with_vocabulary
from pretrain.report.status import SUBMITTED, read_status
from pretrain.run.files import table

# Choose the jobs that are left to do, and check that the request is consistent and the input of the first job exists.


class Chain(NamedTuple):
    """The jobs that are left to do."""

    jobs: list[Job]
    skipped: dict[str, str]
    """Stage -> why it has nothing to do."""


def chain(request: Request, stages: list[str]) -> Chain:
    """Return the jobs of these stages, each after the previous one, without those already done. Raises UserError for
    unknown stages and for an inconsistent request."""
    _check_ranks(request)
    unknown = [name for name in stages if name not in STAGES]
    if unknown or not stages:
        raise UserError(
            f"no stage {unknown[0]!r}" if unknown else "no stage",
            where="--stages",
            expected=f"some of {','.join(STAGES)}",
        )
    jobs, skipped = [], {}
    for name, stage in STAGES.items():
        if name not in stages:
            continue
        if words := stage.done(request):
            skipped[name] = words
        else:
            jobs += stage.jobs(request)
    _check_ground(request, jobs)
    return Chain(jobs, skipped)


def _check_ranks(request: Request) -> None:
    size, given = request.size, [o for o in request.overrides if o.startswith("run.ranks=")]
    if size.gpus_per_node and size.ranks_per_node and size.ranks_per_node != size.gpus_per_node:
        raise UserError(
            f"{size.ranks_per_node} ranks on a node with {size.gpus_per_node} GPUs",
            where="--ranks-per-node",
            expected="one rank a GPU",
            remedy="leave it out, or --gpus-per-node 0 to train on CPUs",
        )
    if given and request.config.run.ranks != size.ranks:
        uneven = request.config.run.ranks % size.nodes
        raise UserError(
            f"{given[-1]} {'does not divide over' if uneven else 'is not what is asked of'} {size.nodes} nodes with "
            f"{size.local_ranks} ranks each",
            where="--nodes",
            expected=f"{size.ranks} ranks",
            remedy="leave run.ranks out: Slurm starts the ranks",
        )


def _check_ground(request: Request, jobs: list[Job]) -> None:
    """Check that the inputs of the first job exist: no earlier job makes them."""
    first = jobs[0].stage if jobs else ""
    if first == "prepare" and not with_vocabulary(request):
        raise UserError(
            "no vocabulary is there", where=request.config.data.vocab, remedy="add vocab to --stages"
        )
    if first == "train" and not prepared(request):
        raise UserError(
            "no shards are there", where=request.config.data.out, remedy="add prepare to --stages"
        )
    if first == "export" and not read_status(Path(request.config.run.dir)).checkpoint:
        raise UserError(
            "there is no checkpoint to export", where=request.config.run.dir, remedy="add train to --stages"
        )


# Add options to the jobs, write them as a script, or submit them.


SCRIPTS = Path(__file__).parent / "sbatch"
"""A link to the folder slurm/ of the sources; in an installed package, its scripts."""
_FOR = re.compile(r"([a-z_]+):(-.*)", re.DOTALL)
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
_MEMORY = {"--mem", "--mem-per-cpu", "--mem-per-gpu"}
ANSWER_SECONDS = 60.0
"""Time limit of sbatch and the other Slurm commands, in seconds."""
ENDED_STATES = {
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
    *("OUT_OF_MEMORY", "REVOKED"),
}
"""Final states of jobs; in all others a job waits, runs, or is about to end."""


def with_options(jobs: Sequence[Job], given: Sequence[str]) -> list[Job]:
    """Add sbatch options to the jobs: `--account=lab` for all of them, `train:--time=48:00:00` for those of one
    stage or of one name. They come last, so they win."""
    jobs = list(jobs)
    for option in given:
        found = _FOR.fullmatch(option)
        wanted, text = (found[1], found[2]) if found else ("", option)
        if not text.startswith("-") or text in ("-", "--"):
            raise UserError(
                f"cannot read {option!r}",
                where="--sbatch",
                expected="an option of sbatch, as --account=lab or train:--time=48:00:00",
            )
        if wanted and wanted not in STAGES and wanted not in {job.name for job in jobs}:
            raise UserError(
                f"no stage or job {wanted!r}",
                where="--sbatch",
                expected=", ".join(dict.fromkeys([*STAGES, *(job.name for job in jobs)])),
            )
        jobs = [
            job._replace(options=[*_without_rivals(job.options, text), text])
            if wanted in ("", job.stage, job.name)
            else job
            for job in jobs
        ]
    return jobs


def _without_rivals(options: list[str], given: str) -> list[str]:
    """Drop the options that conflict with `given`: sbatch takes one way to ask for memory, not two."""
    name = given.partition("=")[0]
    if name not in _MEMORY:
        return options
    return [option for option in options if option.partition("=")[0] not in _MEMORY - {name}]


def command_for_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return how jobs call this program, as the scripts' MASKMILL; empty if that is set, or an image has it."""
    if "MASKMILL" in environment or "CONTAINER" in environment:
        return {}
    program = Path(sys.argv[0]).absolute()
    words = [str(program)] if program.name == "maskmill" else [sys.executable, "-m", "launch.cli"]
    if any(re.search(r"\s", word) for word in words):
        raise UserError(
            f"the path of this program has blanks in it: {' '.join(words)}",
            where="MASKMILL",
            expected="a command without them in the environment",
        )
    return {"MASKMILL": " ".join(words)}


def arguments(job: Job, after: str) -> list[str]:
    """Build the command that submits the job; `after`: the job that it waits for, if any."""
    waits = [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"] if after else []
    return [
        "sbatch",
        "--parsable",
        "--export=ALL",
        f"--job-name=maskmill-{job.name}",
        f"--output={str(job.log.parent).replace('%', '%%')}/{job.log.name}",
        *waits,
        *job.options,
        str((SCRIPTS / job.script).resolve()),
        *job.arguments,
    ]


def as_script(chain: Chain, environment: Mapping[str, str]) -> str:
    """Write a bash script that submits the jobs."""
    lines = ["#!/usr/bin/env bash", "set -euo pipefail", ""]
    lines += [f"# {stage}: {_one_line(words)}" for stage, words in chain.skipped.items()]
    if not chain.jobs:
        return "\n".join([*lines, "# nothing to do", ""])
    lines.append(shlex.join(["mkdir", "-p", str(chain.jobs[0].log.parent)]))
    before, mark = "", "@AFTER@"
    for job in chain.jobs:
        set_here = [
            f"{key}={shlex.quote(value)}" for key, value in {**environment, **job.environment}.items()
        ]
        words = [
            f'"--dependency=afterok:${{{before}}}"'
            if word == f"--dependency=afterok:{mark}"
            else shlex.quote(word)
            for word in arguments(job, mark if before else "")
        ]
        name = f"job_{job.name}"
        lines += [f"{name}=$({' '.join([*set_here, *words])})", f"{name}=${{{name}%%;*}}"]
        lines.append(f'echo "{job.name}: job ${{{name}}}"')
        before = name
    return "\n".join([*lines, ""])


def submit(chain: Chain, environment: Mapping[str, str], run: Path, command: str) -> list[dict[str, Any]]:
    """Submit the jobs; return number, name and log of each, and the job that it waits for.

    The run folder records that with `command`, for `maskmill status`, from the first job on, so the jobs are known
    however this process ends. Raises UserError if jobs submitted earlier for this run are alive, and if sbatch
    refuses one, or says of one that it would not start: all are asked for with --test-only first. On any error, the
    submitted jobs are cancelled; if that fails, a UserError names these jobs, and the run folder keeps them."""
    if shutil.which("sbatch", path=environment.get("PATH")) is None:
        raise UserError(
            "sbatch is not found",
            where="--submit",
            expected="a machine from which jobs of a Slurm cluster are submitted",
            remedy="without --submit the jobs are printed; `maskmill doctor` says what is here",
        )
    if chain.jobs:
        _refuse_live_job(run, environment)
    for job in chain.jobs:
        _check_starts(job, environment)
    place, submitted = run / SUBMITTED, list[dict[str, Any]]()
    before = place.read_bytes() if place.is_file() else None
    try:
        for job in chain.jobs:
            own_folder(job.log.parent, parents=True)
            after = submitted[-1]["job"] if submitted else ""
            number = _sbatch(arguments(job, after), {**environment, **job.environment})
            log = str(job.log).replace("%j", number).replace("%A", number)
            submitted.append(
                {"job": number, "stage": job.stage, "name": job.name, "after": after, "log": log}
            )
            write_whole(place, json.dumps({"command": redact(command), "jobs": submitted}, indent=1).encode())
    except BaseException as error:
        if left := _take_back([one["job"] for one in submitted], environment):
            raise _left_behind(error, left) from error
        with suppress(OSError, UserError):
            place.unlink(missing_ok=True) if before is None else write_whole(place, before)
        raise
    return submitted


def _refuse_live_job(run: Path, environment: Mapping[str, str]) -> None:
    """Raise UserError if jobs submitted earlier for this run are alive: a requeued training leaves no sign in the
    run folder while it waits, and two in one folder would overwrite each other."""
    jobs = table(run / SUBMITTED).get("jobs")
    numbers = [str(job.get("job")) for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
    numbers = [number for number in numbers if number.isdecimal()]
    if not numbers or shutil.which("squeue", path=environment.get("PATH")) is None:
        return
    done = _asked(
        ["squeue", "--noheader", "--states=all", "--format=%F %T", f"--jobs={','.join(numbers)}"], environment
    )
    if done.returncode and "Invalid job id" not in done.stderr:  # Slurm has long forgotten them
        raise UserError(
            f"squeue does not say whether jobs of this run live: {_one_line(done.stderr)}",
            where=run,
            remedy="try again",
        )
    states = [line.split() for line in done.stdout.splitlines()]
    if alive := list(
        dict.fromkeys(words[0] for words in states if len(words) > 1 and words[1] not in ENDED_STATES)
    ):
        raise UserError(
            f"jobs of this run are waiting or running: {', '.join(alive)}",
            where=run,
            remedy=f"wait for them, or scancel {' '.join(alive)}",
        )


def _check_starts(job: Job, environment: Mapping[str, str]) -> None:
    """Raise UserError if Slurm has no node for what the job asks for, partition, limits and options included, or if the
    signal of its time limit leaves no time for a step. Without --test-only such a job may wait for ever."""
    command = arguments(job, "")
    done = _asked([command[0], "--test-only", *command[1:]], {**environment, **job.environment})
    if done.returncode:
        away = _asked(["sinfo", "--noheader", "--states=down,drain,fail,maint", "--format=%D"], environment)
        nodes = sum(int(word) for word in away.stdout.split() if word.isdecimal())
        some = f"once the {nodes} nodes are back that are down or drained now" if nodes else ""
        raise UserError(
            f"Slurm would not start the job maskmill-{job.name}: {_one_line(done.stderr or done.stdout)}",
            where="--submit",
            expected="a request that some nodes of a partition can hold, within its limits",
            remedy=f"change it with --nodes, --gpus-per-node or --sbatch{', or try again ' if some else ''}{some}",
        )
    limit, lead = _time_limit(job.options), _lead(job)
    if limit is not None and lead and limit <= lead:
        raise UserError(
            f"the time limit of the job maskmill-{job.name} is {limit} s, and its signal comes {lead} s before the end",
            where="--sbatch",
            expected=f"more than {lead} s, so that the ranks have time for steps",
            remedy=f"--sbatch={job.name}:--time=HOURS:MINUTES:SECONDS, or --sbatch={job.name}:--signal=B:USR1@SECONDS",
        )


def _time_limit(options: Sequence[str]) -> int | None:
    """Return the seconds of the last --time among sbatch's options; None without one, and for one that sbatch reads
    and this does not, as UNLIMITED."""
    given = [option.partition("=")[2] for option in options if option.startswith("--time=")]
    found = _TIME.fullmatch(given[-1]) if given else None
    if found is None:
        return None
    days, rest = found["days"], [int(part) for part in found["rest"].split(":")]
    if days is None and len(rest) < 3:  # minutes, minutes:seconds
        rest = [0, *rest]
    hours, minutes, seconds = [*rest, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _lead(job: Job) -> int:
    """Return how many seconds before its time limit Slurm signals the job, by its options or its script; 0: never."""
    header = re.findall(r"^#SBATCH (--signal=\S+)$", (SCRIPTS / job.script).read_text(), re.MULTILINE)
    signals = [option for option in [*header, *job.options] if option.startswith("--signal=")]
    found = re.search(r"@(\d+)$", signals[-1]) if signals else None
    return int(found[1]) if found else 0


def _sbatch(command: list[str], environment: Mapping[str, str]) -> str:
    done = _asked(command, environment)
    number = done.stdout.strip().split(";")[0]
    if done.returncode or not number.isdecimal():
        said = _one_line(done.stderr or done.stdout) or f"exit code {done.returncode}"
        raise UserError(
            f"sbatch refused the job {command[3].partition('=')[2]}: {said}",
            where="--submit",
            remedy="give sbatch's options with --sbatch; jobs that were submitted before are cancelled",
        )
    return number


def _asked(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"{command[0]} does not answer: {error}", where="--submit", remedy="try again"
        ) from None


def _take_back(numbers: Sequence[str], environment: Mapping[str, str]) -> Sequence[str]:
    """Cancel the jobs; return those that may survive because scancel failed."""
    if not numbers:
        return ()
    try:
        return numbers if _asked(["scancel", *numbers], environment).returncode else ()
    except UserError:
        return numbers


def _left_behind(error: BaseException, numbers: Sequence[str]) -> UserError:
    """Return an error with the original failure and the jobs that are still alive."""
    what, where = _one_line(str(error)) or type(error).__name__, "--submit"
    if isinstance(error, UserError):
        what, where = error.what, error.where
    return UserError(
        f"{what}; jobs that were submitted before could not be cancelled: {', '.join(numbers)}",
        where=where,
        remedy=f"scancel {' '.join(numbers)}",
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def jobs_environment() -> dict[str, str]:
    """Return the environment of the jobs: that of this process, and how to call this program."""
    return {**os.environ, **command_for_jobs(os.environ)}
