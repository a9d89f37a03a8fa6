#!/usr/bin/env bash
# Check whether this container can continue its work: exit code 0, or 1 and one line that says why not.
#
#   the working folder takes files     a full disk and a folder of another user are what stops most runs
#   the GPUs answer, if there are any  a container can lose them while it runs (after a restart of the host's daemons)
#   the run is active, if it is named  HEALTH_RUN=runs/demo: a line of its metrics, or its heartbeat, was new to one of the
#                                      checks of the last HEALTH_SECONDS (3600), counted from the container's first check
#                                      and the run's newest attempt on; a run that says that it has ended, whatever its
#                                      end, is healthy
#
# A check notes in HEALTH_NOTES (/dev/shm) what the files are and how long the machine has been up. It compares no file's
# date with a clock: clocks are set, and the server of a shared folder has its own.
#
# Ranks that hang are ended by run.step_timeout and run.stage_limit, not by this script.

set -euo pipefail

fail() {
  echo "unhealthy: $1"
  exit 1
}

probe=$(mktemp --tmpdir="$PWD" .health-XXXXXX 2>/dev/null) || fail "$PWD takes no files"
trap 'rm -f "$probe"' EXIT
head -c 65536 /dev/zero 2>/dev/null >"$probe" || fail "$PWD is full"

if [[ -e /dev/nvidiactl ]]; then
  nvidia-smi --list-gpus >/dev/null 2>&1 || fail "the GPUs do not answer (nvidia-smi)"
fi

if [[ -n ${HEALTH_RUN:-} ]]; then
  run=$HEALTH_RUN/run.json summary=$HEALTH_RUN/summary.json heartbeat=$HEALTH_RUN/.heartbeat.json
  signs=$(stat --format='%n %s %.Y' "$run" "$HEALTH_RUN/metrics.jsonl" "$summary" "$heartbeat" 2>/dev/null || true)
  # of this run in this container alone: /dev/shm may be the host's
  container="$(readlink /proc/self/ns/pid) $(sed 's/.*) //' /proc/1/stat | cut --delimiter=' ' --fields=20)"
  key=$(cksum <<<"$UID $container $PWD $HEALTH_RUN")
  note=${HEALTH_NOTES:-/dev/shm}/.maskmill-health-${key// /-}

  now=$(cut --delimiter=. --fields=1 /proc/uptime)
  since='' seen=''
  if [[ -e $note ]]; then
    { IFS= read -r since && seen=$(cat); } <"$note" || true
  fi
  if [[ $seen != "$signs" || ! $since =~ ^[0-9]+$ ]]; then
    since=$now
    if ! printf '%s\n%s\n' "$now" "$signs" 2>/dev/null >"$note"; then
      unknown=", as far as can be said: $note cannot be written"
    fi
  fi

  before='' ended='"status": *"(finished|stopped|failed)"'
  begun=$(grep -Eos '"attempts": *[0-9]+' "$run" | head -n 1 || true)
  reached=$(grep -Eos '"attempt": *[0-9]+' "$heartbeat" | head -n 1 || true)
  if [[ -n $begun && -n $reached ]]; then
    [[ ${begun##*[: ]} -le ${reached##*[: ]} ]] || before=yes
  elif [[ $run -nt $summary ]]; then # an older version's files have no numbers
    before=yes
  fi
  if [[ -n $before ]]; then # that is of the attempt before: a new one has begun
    ended='"status": *"finished"' # no attempt begins after this one
  fi
  age=$((now - since))
  if ((age > ${HEALTH_SECONDS:-3600})) && ! grep -Eqs "$ended" "$summary"; then
    fail "nothing new in $HEALTH_RUN for $age s"
  fi
fi
echo "healthy${unknown:-}"
