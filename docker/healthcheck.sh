#!/usr/bin/env bash
# Check whether this container can continue its work: exit code 0, or 1 and one line that says why not.
#
#   the working folder takes files     a full disk and a folder of another user are what stops most runs
#   the GPUs answer, if there are any  a container can lose them while it runs (after a restart of the host's daemons)
#   the run is active, if it is named  HEALTH_RUN=runs/demo: a line of its metrics, or its heartbeat, in the last
#                                      HEALTH_SECONDS (3600), from the start of the container and of the run's newest
#                                      attempt on; a run that says that it has ended, whatever its end, is healthy
#
# Steps that hang are ended by run.step_limit, not by this script.

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
  newest=$(stat --format=%Y /proc/1)
  for file in "$HEALTH_RUN"/{run.json,metrics.jsonl,summary.json,.heartbeat.json}; do
    if [[ -e $file ]]; then
      changed=$(stat --format=%Y "$file")
      newest=$((changed > newest ? changed : newest))
    fi
  done
  age=$(($(date +%s) - newest))
  ended='"status": *"(finished|stopped|failed)"'
  if [[ $HEALTH_RUN/run.json -nt $HEALTH_RUN/summary.json ]]; then # that was the attempt before: a new one has begun
    ended='"status": *"finished"'                                  # no attempt begins after this one
  fi
  if ((age > ${HEALTH_SECONDS:-3600})) && ! grep -Eqs "$ended" "$HEALTH_RUN/summary.json"; then
    fail "nothing new in $HEALTH_RUN for $age s"
  fi
fi
echo healthy
