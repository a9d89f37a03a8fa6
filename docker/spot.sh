#!/usr/bin/env bash
# Wait until the cloud announces that it takes this machine back, then run a command and end; on the host, beside the container:
#
#     docker/spot.sh aws docker stop --time 110 maskmill &
#
# Each cloud announces it to the machine alone: aws (spot interruption) two minutes before, gcp
# (preemption) and azure (Preempt, with this machine among the event's Resources) 30 seconds before. `docker stop` sends SIGTERM: the ranks agree on a step, save a
# checkpoint and end with exit code 3.
#
#     METADATA   where the machine asks        http://169.254.169.254
#     EVERY      seconds between two looks     2

set -euo pipefail

cloud=${1:-}
metadata=${METADATA:-http://169.254.169.254}
ask=(curl --silent --fail --max-time 2 --noproxy '*')

aws() {
  local token
  token=$("${ask[@]}" --request PUT --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token")
  "${ask[@]}" --header "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/spot/instance-action" >/dev/null
}

gcp() {
  "${ask[@]}" --header 'Metadata-Flavor: Google' "$metadata/computeMetadata/v1/instance/preempted" | grep -qx TRUE
}

# The document is that of all machines of the scale set or availability set: an event is for those that its Resources name.
azure() {
  local events
  if [[ -z ${name:-} ]]; then
    name=$("${ask[@]}" --header 'Metadata: true' "$metadata/metadata/instance/compute/name?api-version=2021-02-01&format=text") || {
      echo "spot.sh: $metadata does not say what this machine is called" >&2
      return 1
    }
  fi
  events=$("${ask[@]}" --header 'Metadata: true' "$metadata/metadata/scheduledevents?api-version=2020-07-01") || return 1
  # an event a line: they hold no other objects
  tr -d '\r\n' <<<"$events" | grep -o '{[^{}]*}' | grep -E '"EventType" *: *"Preempt"' |
    grep -oE '"Resources" *: *\[[^]]*\]' | grep -qiF "\"$name\""
}

case $cloud in
  aws | gcp | azure) shift ;;
  *) set -- ;;
esac
if [[ $# -eq 0 ]]; then
  echo "usage: spot.sh aws|gcp|azure COMMAND ..." >&2
  exit 2
fi

until "$cloud"; do
  sleep "${EVERY:-2}"
done
echo "$(date --iso-8601=seconds) $cloud takes this machine back: $*"
exec "$@"
