# make env    the virtual environment .venv (re-used; rebuilt only when pyproject.toml changes)
# make demo   text -> shards -> DeepSpeed training -> Hugging Face model -> filled blanks, and its figures beside guessing
# make test   the tests to run while you work: each package; says how many of the slow ones it leaves out
# make test-all   all tests that need no root and no GPU
# make test-failed   the tests that failed in the last make test-all, alone, one after the other
# make test-cluster   what runs on Slurm, on a real cluster of four nodes on this machine: root, Debian or Ubuntu
# make test-docker    builds the CPU image without a Docker engine, and runs it: root, Debian or Ubuntu
# make lock   resolve again what the images install, by version and hash, from what pyproject.toml asks for
# make audit  look for known vulnerabilities in what they install
# make test-browser   the report in a real headless Chromium; screenshots in tests/artefacts
# make test-fake-gpu  the host code of CUDA on a pretended H100: Linux, gcc; several GB of packages in .venv-cuda
# make test-torch   what is compiled, on the torch versions that pyproject.toml allows; several GB of packages each in .venv-torch-VERSION
# make test-one-torch TORCH=2.12.0   the same on one of them
# make test-transformers   every family's export as older versions of transformers and the newest read it; 200 MB each in .venv-transformers-VERSION
# make gpu-day  what a machine with a GPU and no network needs for tests/gpu_day/day.py, in build/gpu_day; SOURCE=TEXT
# make test-data DATA=FOLDER   evaluation on the published files of tasks that FOLDER holds; fails where one is missing
# make reshard   checkpoints of every number of ranks and ZeRO stage continued at every other: 256 pairs, an hour
# make storm  fifty runs, killed at random moments and resumed, all bit-equal in the end (half an hour)
# make fuzz   more than a hundred thousand files changed at random, of every kind that is read: refused or read correctly
# make study-mini   the Trainer of transformers beside ours at equal time, each at its best rate: docs/evidence/studies/trainer.md; SEEDS=3
# make docs   the pages of docs/ as a site in build/site, every link checked
# make lint   ruff, mypy, shellcheck and hadolint

PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready-$(subst =,-,$(subst <,-,$(subst >,-,$(TORCH_SPEC))))
# quiet unless something fails; pip's own configuration chooses the index
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Python that prints constraints for what is installed beside torch: torch's own version, so that no other package can pull another one;
# for torch 2.11 a NumPy before 2.4, which the interpreter of its triton 3.6 does not take
CONSTRAINTS := from importlib.metadata import version; torch = version("torch"); print("torch==" + torch); torch.startswith("2.11.") and print("numpy<2.4")

.PHONY: env demo test test-all test-failed test-cluster test-docker test-browser test-fake-gpu test-torch test-one-torch test-transformers gpu-day test-data lock audit reshard storm fuzz study-mini docs lint format clean

env: $(STAMP)

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "maskmill: $(PYTHON) is too old (expected Python 3.11 or newer; make env PYTHON=python3.12)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) with $(TORCH_SPEC) (some minutes the first time)"
	@$(PIP) install "$(TORCH_SPEC)"
	@$(BIN)/python -c '$(CONSTRAINTS)' > $(VENV)/torch.txt
	@$(PIP) install --constraint $(VENV)/torch.txt --editable ".[dev,docs,dask,s3]"
	@rm -f $(VENV)/.ready-* && touch $@

# in the manner of the text; --held-out adds blanks at fixed places of held-out documents
DEMO_BLANKS := "Location of Fiji: Oceania, island group in the South Pacific [MASK]." \
  "Capital name of Trinidad and [MASK]: Port of Spain." \
  "Independence of Ghana: 6 March 1957 (from the [MASK])." \
  "Total fertility rate of Kenya: 3.2 children born/[MASK] (2025 est.)." \
  "Agricultural products of Ghana: cassava, yams, [MASK], plantains, oil palm fruit (2023)."

demo: env
	@set -e; run() { printf '\n$$ %s\n' "maskmill $$*"; $(BIN)/maskmill "$$@"; }; \
	run vocab demo; \
	run prepare demo; \
	run train demo; \
	run export demo; \
	run fill runs/demo $(DEMO_BLANKS) --held-out; \
	run inspect runs/demo; \
	run status runs/demo

# in the order of the folders: those whose tests start processes first, so that the two workers end together
PYTEST := $(BIN)/python -m pytest tests -n 2 --dist loadfile --no-loadscope-reorder

# where pytest keeps which tests failed, and its exit status
LAST := build/test-all
REMEMBER := -o cache_dir=$(LAST)

test: env
	@$(PYTEST) -m "not slow and not cluster and not docker and not browser and not fake_gpu and not data"

test-all: env
	@rm -rf $(LAST) && mkdir -p $(LAST)
	@status=0; $(PYTEST) $(REMEMBER) || status=$$?; echo $$status >$(LAST)/status; exit $$status

# alone, so that a machine with other work on it delays nothing. Refuses where test-all ended with anything else than failed tests, such
# as an error of collection, after which other tests have not run
test-failed: env
	@# with pytest-xdist an error of collection has the exit status of failed tests, but its name is that of a file, without ::
	@test "$$(cat $(LAST)/status)" = 1 && ! grep -q '^ *"[^:]*": true' $(LAST)/v/cache/lastfailed || { echo "make test-failed: make test-all did not end with failed tests alone"; exit 2; }
	@$(BIN)/python -m pytest tests -vv -n 0 $(REMEMBER) --last-failed --last-failed-no-failures none

# installs Slurm where it is missing; fails, never skips, where the cluster cannot start
test-cluster: env
	@command -v slurmctld slurmd munged ip >/dev/null || { \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y slurm-wlm munge iproute2 >/dev/null; }
	@$(BIN)/python -m pytest tests/cluster -m cluster

# fails, never skips, where a file is missing
test-data: env
	@test -d "$(DATA)" || { echo "make test-data: no such folder: '$(DATA)' (expected DATA=FOLDER with the files of tasks)"; exit 2; }
	@MASKMILL_DATA="$(abspath $(DATA))" $(BIN)/python -m pytest tests/data -m data

# installs what builds and runs images where it is missing; fails, never skips, where it cannot. TORCH_INDEX: where torch comes
# from; empty: from where pip gets it here, which has to have CPU builds. MASKMILL_IMAGES: a folder for the images, which then stay
test-docker: env
	@which buildah podman runc debootstrap >/dev/null || { \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y buildah podman runc debootstrap \
	    debian-archive-keyring >/dev/null; }
	@TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/python -m pytest tests/docker -m docker

lock: env
	@$(PIP) install "uv>=0.8"
	@UV=$(BIN)/uv TORCH_SPEC="$(TORCH_SPEC)" docker/lock.sh

audit: env
	@$(PIP) install "pip-audit>=2.9"
	@$(BIN)/pip-audit --requirement docker/requirements.lock --require-hashes --disable-pip --strict
# installs Chromium where it is missing (as root, Debian or Ubuntu); fails, never skips, where it cannot start
test-browser: env
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y chromium >/dev/null; }
	@$(BIN)/python -m pytest tests/browser -m browser

# The CUDA build of torch, in an environment of its own. `===` compares the version as text: an index of CPU builds, whose versions end
# in +cpu, has none that is equal
VENV_CUDA := .venv-cuda
CUDA_TORCH := torch===$(patsubst torch==%,%,$(TORCH_SPEC))
CUDA_STAMP := $(VENV_CUDA)/.ready-$(subst =,-,$(CUDA_TORCH))
PIP_CUDA := $(VENV_CUDA)/bin/python -m pip --quiet --disable-pip-version-check

$(CUDA_STAMP): pyproject.toml
	@test -x $(VENV_CUDA)/bin/python || $(PYTHON) -m venv $(VENV_CUDA)
	@echo "setting up $(VENV_CUDA) with $(CUDA_TORCH) (several GB)"
	@$(PIP_CUDA) install "$(CUDA_TORCH)"
	@$(VENV_CUDA)/bin/python -W ignore -c 'import sys, torch; sys.exit(torch.version.cuda is None)' || { echo "make test-fake-gpu: $(CUDA_TORCH) is no CUDA build"; exit 2; }
	@echo "$(CUDA_TORCH)" > $(VENV_CUDA)/torch.txt
	@$(PIP_CUDA) install --constraint $(VENV_CUDA)/torch.txt --editable ".[dev]"
	@rm -f $(VENV_CUDA)/.ready-* && touch $@

test-fake-gpu: $(CUDA_STAMP)
	@command -v gcc nm >/dev/null || { echo "make test-fake-gpu: needs gcc and nm"; exit 2; }
	@$(VENV_CUDA)/bin/python -m pytest tests/fake_gpu -m fake_gpu

# Compiling is what differs most between versions of torch. Old ones are published for CUDA alone; no GPU is needed
TORCH ?= 2.11.0 2.12.0 2.13.0
VENV_TORCH = .venv-torch-$(TORCH)
PIP_TORCH = $(VENV_TORCH)/bin/python -m pip --quiet --disable-pip-version-check

$(VENV_TORCH)/.ready: pyproject.toml
	@test -x $(VENV_TORCH)/bin/python || $(PYTHON) -m venv $(VENV_TORCH)
	@echo "setting up $(VENV_TORCH) (several GB)"
	@$(PIP_TORCH) install "torch==$(TORCH)"
	@$(VENV_TORCH)/bin/python -c '$(CONSTRAINTS)' > $(VENV_TORCH)/torch.txt
	@$(PIP_TORCH) install --constraint $(VENV_TORCH)/torch.txt --editable ".[dev]"
	@touch $@

test-torch:
	@for one in $(TORCH); do $(MAKE) --no-print-directory test-one-torch TORCH=$$one || exit; done

test-one-torch: $(VENV_TORCH)/.ready
	@$(VENV_TORCH)/bin/python -m pytest tests/unit/pretrain/training/test_feed.py tests/unit/pretrain/model tests/unit/pretrain/optim/test_lamb_kernels.py tests/smoke/test_compiled_run.py

# Exports are written by .venv, and read by each version in an environment of its own, which borrows torch from .venv
TRANSFORMERS ?= 4.48.3 4.51.3 4.57.6 newest
READERS := build/readers

.venv-transformers-%/.ready: | env
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "setting up $(@D)"
	@$(@D)/bin/python -m pip --quiet --disable-pip-version-check install $(if $(filter newest,$*),--upgrade transformers,"transformers==$*")
	@$(BIN)/python -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parents[1])' > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	@touch $@

# prints the table of docs/reference/objectives.md; fails where the newest version reads a family in another way
test-transformers: env $(TRANSFORMERS:%=.venv-transformers-%/.ready)
	@rm -rf $(READERS) && mkdir -p $(READERS)
	@$(BIN)/python -m tests.readers.exports write $(READERS)/exports
	@for one in $(TRANSFORMERS); do .venv-transformers-$$one/bin/python tests/readers/load.py $(READERS)/exports >$(READERS)/$$one.jsonl || exit; done
	@$(BIN)/python -m tests.readers.exports table $(TRANSFORMERS:%=$(READERS)/%.jsonl)

gpu-day: env
	@$(BIN)/python -m tests.gpu_day.carry --source "$(SOURCE)"

reshard: env
	@MASKMILL_RESHARD=1 $(BIN)/python -m pytest tests/multirank/test_reshard.py
RUNS ?= 50

storm: env
	@$(BIN)/python tests/faults/storm.py --runs $(RUNS)

CASES ?= 120000

# other cases each time; the seed is printed, and a case that goes wrong is made again from it
fuzz: env
	@$(BIN)/python tests/faults/fuzz.py --cases $(CASES)
	@MASKMILL_FUZZ=60 $(BIN)/python -m pytest -s tests/unit/data_pipeline/sources/test_fuzz_sources.py tests/unit/data_pipeline/shards/test_index.py

docs: env
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "the site: build/site/index.html"

SEEDS ?= 1
MINUTES ?= 6
JOBS ?= 1

study-mini: env
	@$(BIN)/python -m tests.benchmarks.study_mini --source "$(SOURCE)" --minutes $(MINUTES) --seeds $(SEEDS) --jobs $(JOBS)

lint: env
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/shellcheck slurm/*.sbatch docker/*.sh .ci/run
	@$(BIN)/hadolint docker/Dockerfile docker/Dockerfile.cpu

format: env
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV_CUDA) .venv-transformers-* build *.egg-info runs
