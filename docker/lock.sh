#!/usr/bin/env bash
# Write docker/requirements.lock and docker/torch.lock from pyproject.toml: what the images install, by version and hash,
# for Python 3.11 and later. torch.lock has what torch's builds for CUDA bring beyond that. `make lock` runs this; UV is the
# command of uv, TORCH_SPEC the torch that the rest has to go with.

set -euo pipefail
cd "$(dirname "$0")/.."

uv=${UV:-uv}
lock=docker/requirements.lock of_torch=docker/torch.lock
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# pip, setuptools, wheel and ninja: what builds the packages that have no wheel is part of what is installed.
# nvidia-ml-py: DeepSpeed asks for it where it is built for CUDA.
printf '%s\n' "${TORCH_SPEC:-torch==2.13.0}" pip setuptools wheel ninja nvidia-ml-py |
  "$uv" pip compile pyproject.toml - --extra dask --extra s3 --universal --python-version 3.11 --generate-hashes \
    --native-tls --no-annotate --custom-compile-command "make lock" --quiet --output-file "$new"

# Which build of torch, and from where, is chosen when an image is built (install.sh)
theirs='^(triton|nvidia-|cuda-)'
awk -v theirs="$theirs" \
  '/^[a-zA-Z0-9]/ { on = /^nvidia-ml-py=/ || $0 !~ theirs && !/^torch=/ } /^#/ { on = 1 } on' "$new" >"$lock"
awk -v theirs="$theirs" '/^[a-zA-Z0-9]/ { on = !/^nvidia-ml-py=/ && $0 ~ theirs } /^#/ { on = 1 } on' "$new" >"$of_torch"
echo "$lock: $(grep -c '^[a-zA-Z0-9]' "$lock") packages, $of_torch: $(grep -c '^[a-zA-Z0-9]' "$of_torch")"
