#!/usr/bin/env bash
# Install what both images hold, one step per call; the Dockerfiles say which, in which order:
#
#   install.sh system PACKAGE ...   packages of Debian or Ubuntu, without the lists that came along
#   install.sh environment          $VENV: the packages of requirements.lock, torch, DeepSpeed with its operators
#   install.sh maskmill             the source tree that this script lies in, into $VENV
#   install.sh user                 the user that containers run as, its home, and /work
#
# Every package but torch is of the version, and of one of the hashes, that requirements.lock names. torch and what
# only its CUDA builds need (NVIDIA's libraries, triton) come from another index, which TORCH_INDEX names, in the versions
# of torch.lock: each index has files, and so hashes, of its own.
#
#   VENV         the virtual environment                              /opt/maskmill
#   TORCH_SPEC   which torch                                          torch==2.13.0
#   TORCH_INDEX  where from; empty: from where pip gets all else      (empty)
#   ALLOW_CUDA   1: torch may be a build for CUDA, which brings some GB of NVIDIA's libraries; else that ends the build
#   DS_OPS       DeepSpeed's operators to compile, as FUSED_ADAM      (none)
#   USER_ID, GROUP_ID   numbers of the user                         1000, 1000

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lock=$here/requirements.lock of_torch=$here/torch.lock
venv=${VENV:-/opt/maskmill}
pip=("$venv/bin/python" -m pip --no-cache-dir --disable-pip-version-check --no-input)
BUILDERS="pip setuptools wheel ninja" # what builds the packages that have no wheel

# The lock's entries of packages that are (yes) or are not (no) among NAMES.
entries() { # yes|no NAMES
  awk -v want="$1" -v names=" $2 " '
    /^[a-zA-Z0-9]/ { name = $1; sub(/[=\[;@ ].*/, "", name); on = (index(names, " " name " ") > 0) == (want == "yes") }
    on' "$lock"
}

# Without isolation: what builds is of the lock as well, and DeepSpeed finds the torch that it is built for.
locked() { # yes|no NAMES
  local chosen
  chosen=$(mktemp)
  entries "$1" "$2" >"$chosen"
  "${pip[@]}" install --require-hashes --no-deps --no-build-isolation --requirement "$chosen"
  rm "$chosen"
}

system() { # PACKAGE ...
  export DEBIAN_FRONTEND=noninteractive
  apt-get update
  apt-get install --yes --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/*
}

# The CUDA that the installed torch is built for; nothing for a CPU build. Without importing it: its libraries are not there yet.
cuda_of_torch() {
  "$venv/bin/python" -c 'from importlib.util import find_spec; from pathlib import Path; from runpy import run_path
print(run_path(str(Path(find_spec("torch").origin).with_name("version.py")))["cuda"] or "")'
}

environment() {
  local index=() op cuda versions
  python3 -m venv "$venv"
  locked yes "$BUILDERS"
  locked no "$BUILDERS deepspeed"
  if [[ -n ${TORCH_INDEX:-} ]]; then
    index=(--index-url "$TORCH_INDEX")
  fi
  "${pip[@]}" install "${index[@]}" --no-deps "${TORCH_SPEC:-torch==2.13.0}"
  cuda=$(cuda_of_torch)
  if [[ -n $cuda && ${ALLOW_CUDA:-} != 1 ]]; then
    echo "install.sh: this torch is a build for CUDA $cuda, whose libraries make an image for CPUs some 4 GB larger: give the build" \
      "argument TORCH_INDEX, the index of CPU builds that pytorch.org names, or ALLOW_CUDA=1" >&2
    exit 1
  fi
  versions=$(mktemp)
  awk '/^[a-zA-Z0-9]/ { sub(/ *\\$/, ""); print }' "$lock" "$of_torch" >"$versions" # without hashes
  "${pip[@]}" install "${index[@]}" --constraint "$versions" "${TORCH_SPEC:-torch==2.13.0}"
  rm "$versions"
  for op in ${DS_OPS:-}; do
    export "DS_BUILD_$op=1"
  done
  locked yes deepspeed
  "${pip[@]}" check # the lock was made for another torch: say so now
}

maskmill() {
  "${pip[@]}" install --no-deps --no-index --no-build-isolation "$here/.."
  "${pip[@]}" check
}

user() {
  local uid=${USER_ID:-1000} gid=${GROUP_ID:-1000} taken
  taken=$(getent passwd "$uid" | cut -d: -f1 || true)
  if [[ -n $taken ]]; then # as `ubuntu` in Ubuntu's images
    userdel --remove "$taken" 2>/dev/null
  fi
  getent group "$gid" >/dev/null || groupadd --gid "$gid" maskmill
  useradd --uid "$uid" --gid "$gid" --create-home --shell /bin/bash maskmill
  install --directory --owner "$uid" --group "$gid" --mode 0755 /work
  # on every PATH: launchers of clusters bring their own
  ln -s "$venv/bin/maskmill" "$venv/bin/torchrun" /usr/local/bin/
}

case ${1:-} in
  system | environment | maskmill | user) "$@" ;;
  *)
    echo "usage: install.sh system PACKAGE ... | environment | maskmill | user" >&2
    exit 2
    ;;
esac
