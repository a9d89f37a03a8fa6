#!/usr/bin/env bash
# Write docker/requirements.lock from pyproject.toml: what the images install, by version and hash, for Python 3.11 and
# later. `make lock` runs this; UV is the command of uv, TORCH_SPEC the torch that the rest has to go with.

set -euo pipefail
cd "$(dirname "$0")/.."

uv=${UV:-uv}
lock=docker/requirements.lock
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# pip, setuptools, wheel and ninja: what builds the packages that have no wheel is part of what is installed.
# nvidia-ml-py: DeepSpeed asks for it where it is built for CUDA.
printf '%s\n' "${TORCH_SPEC:-torch==2.13.0}" pip setuptools wheel ninja nvidia-ml-py |
  "$uv" pip compile pyproject.toml - --extra dask --extra s3 --universal --python-version 3.11 --generate-hashes \
    --native-tls --no-annotate --custom-compile-command "make lock" --quiet --output-file "$new"

# torch, and what only its builds for CUDA need, are chosen when an image is built (install.sh)
awk '/^[a-zA-Z0-9]/ { on = /^nvidia-ml-py=/ || !/^(torch|triton|nvidia-|cuda-)/ } /^#/ { on = 1 } on' "$new" >"$lock"
echo "$lock: $(grep -c '^[a-zA-Z0-9]' "$lock") packages"
