"""An exported folder in; a repository on the Hugging Face hub out, in one commit. The one door to huggingface_hub.

What leaves this machine is a list of known names, each checked against the hash of its export: a folder that holds
more than an export (checkpoints, logs, keys) gives none of it away.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from data_pipeline.blotting import blot
from data_pipeline.entries import canonical_json
from data_pipeline.errors import UserError

NOTE, CARD = "maskmill.json", "README.md"
EXPORT, RUN = "export", "run.json"
"""A run's own export, in its folder; and the file by which a folder is known as a run's."""
CHANGED = "is missing or its bytes changed since the export"
PLACEHOLDER = "THIS_MODEL"
"""Stands in a card's snippets for the folder, or the model's name on the hub, which a push puts in."""
BELONGS = frozenset(
    (
        *(NOTE, CARD, "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("vocab.txt", "vocab.json", "merges.txt"),
    )
)
"""Names that an export may hold; nothing else is sent."""
TIMEOUT = (10.0, 120.0, 120.0, 10.0)
"""Seconds to connect, read, write and wait for a connection: huggingface_hub's own client waits for ever."""
HOW_TO_LOG_IN = (
    "hf auth login, or a token with the right to write (huggingface.co/settings/tokens) in HF_TOKEN"
)
LICENCES = frozenset(
    (
        *(
            "apache-2.0",
            "mit",
            "bsd",
            "bsd-2-clause",
            "bsd-3-clause",
            "gpl",
            "gpl-2.0",
            "gpl-3.0",
            "lgpl-3.0",
        ),
        *(
            "agpl-3.0",
            "mpl-2.0",
            "cc",
            "cc0-1.0",
            "cc-by-4.0",
            "cc-by-sa-4.0",
            "cc-by-nc-4.0",
            "cc-by-nd-4.0",
        ),
        *("cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0", "openrail", "bigscience-openrail-m", "unlicense", "eupl-1.2"),
        *("odbl", "pddl", "wtfpl", "artistic-2.0", "other", "unknown"),
    )
)
"""Licences that the hub knows by these identifiers; another one goes there as `other`, with its name."""


@dataclass(frozen=True)
class Upload:
    """What is going to be sent."""

    files: Mapping[str, Path | bytes]
    left_out: tuple[str, ...]
    """Names in the folder that are no part of an export."""
    edited: bool
    """Whether the card is no longer as it was exported: people may write on it."""
    step: int
    """The step of the run at which it was exported."""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {
            name: len(file) if isinstance(file, bytes) else file.stat().st_size
            for name, file in self.files.items()
        }


@dataclass(frozen=True)
class Pushed:
    """Where it is now."""

    url: str
    commit: str
    new: bool
    """False: the repository held all of it already, and there is no new commit."""


def front_matter(name: str, languages: tuple[str, ...], licence: str, scores: Mapping[str, float]) -> str:
    """The metadata block at the top of a model card, by the hub's own writer."""
    results = [
        EvalResult(
            task_type="fill-mask",
            task_name="Masked language modelling",
            dataset_type="held-out",
            dataset_name="held-out documents of the training text",
            metric_type="accuracy" if "accuracy" in key else "loss",
            metric_name=key,
            metric_value=round(value, 4),
        )
        for key, value in scores.items()
    ]
    known = licence.lower() in LICENCES
    data = ModelCardData(
        language=list(languages) or None,
        license=(licence.lower() if known else "other") if licence else None,
        license_name=None
        if known or not licence
        else re.sub(r"[^a-z0-9.]+", "-", licence.lower()).strip("-"),
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["bert", "masked-lm", "maskmill"],
        model_name=name if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def check_name(repo: str) -> None:
    """Raises UserError where `repo` cannot be the name of a repository."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(
            _first_line(error), where="REPO", expected="NAME or OWNER/NAME, as yourname/demo"
        ) from None


def exported_folder(source: Path) -> Path:
    """The exported model that `source` is, or that a run of this folder has. Raises UserError where there is none."""
    if (source / NOTE).is_file() or not (source / RUN).is_file():
        return source
    if not (source / EXPORT).is_dir():
        raise UserError("has no export yet", where=source, remedy=f"maskmill export {source}")
    return source / EXPORT


def newest_step(source: Path) -> int:
    """The step of the newest checkpoint of a run folder, by its name; 0 where there is none."""
    markers = source.glob("checkpoints/step-*/checkpoint.json")
    numbers = [marker.parent.name.removeprefix("step-") for marker in markers]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def changed(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Names of the files that are missing or have other bytes than when they were exported."""
    files = ((name, folder / Path(name).name) for name in hashes)
    return [name for name, file in files if not file.is_file() or _sha256(file) != hashes[name]]


def gather(folder: Path, repo: str) -> Upload:
    """The files of the export in `folder`, after a check of its proof and of every hash; the card's PLACEHOLDER becomes
    the name `repo`. Raises UserError for a folder that is no export or is not as it was exported."""
    note = _note(folder)
    hashes = dict(note["sha256"])
    if foreign := sorted(hashes.keys() - BELONGS):
        raise UserError(f"names {foreign[0]!r}, which is no part of an export", where=folder / NOTE)
    different = changed(folder, hashes)
    for name in different:
        if name != CARD or not (folder / CARD).is_file():
            raise UserError(CHANGED, where=folder / name, remedy="export again")
    files = {name: folder / name for name in hashes}
    for needed in ("config.json", "model.safetensors", CARD):
        if needed not in files:
            raise UserError(f"has no hash of {needed}", where=folder / NOTE, remedy="export again")
    card = files[CARD].read_bytes().replace(PLACEHOLDER.encode(), repo.encode())
    hashes[CARD] = hashlib.sha256(card).hexdigest()
    sent = {**files, CARD: card, NOTE: canonical_json({**note, "sha256": hashes}, indent=1)}
    left_out = sorted({path.name for path in folder.iterdir()} - sent.keys())
    return Upload(dict(sorted(sent.items())), tuple(left_out), CARD in different, int(note.get("step", 0)))


def _note(folder: Path) -> dict[str, Any]:
    """maskmill.json of an export whose proof holds."""
    path = folder / NOTE
    if not path.is_file():
        raise UserError(
            "not an exported model",
            where=folder,
            expected=f"a folder with {NOTE}, which `maskmill export` writes",
            remedy="maskmill export RUN",
        )
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        hashes, proof = note["sha256"], note.get("proof", {})
        holds = [float(head["difference"]) <= float(head["allowed"]) for head in proof.values()]
        if not all(isinstance(name, str) and isinstance(value, str) for name, value in hashes.items()):
            raise ValueError("hashes")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError("malformed", where=path, remedy="export again") from None
    if not holds or not all(holds):
        raise UserError("has no proof of equal logits", where=path, remedy="export again")
    return dict(note)


def push(upload: Upload, repo: str, private: bool) -> Pushed:
    """Sends all files in one commit to `repo`, which is made where it does not exist. Raises UserError where there is
    no token, the hub cannot be reached, or it does not take them; a repository that exists and is public is no place
    for what is to be private."""
    token = _token()
    with _told(repo), _patient():
        if not sys.stderr.isatty():
            disable_progress_bars()
        api = HfApi(token=token)
        full = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
        about = api.repo_info(full)
        if private and not about.private:
            raise UserError(
                "exists and is public",
                where=full,
                expected="a private repository",
                remedy="name another, or change it on its page",
            )
        operations = [
            CommitOperationAdd(name, file if isinstance(file, bytes) else str(file))
            for name, file in upload.files.items()
        ]
        commit = api.create_commit(full, operations, commit_message="Model exported by Maskmill")
        return Pushed(f"{api.endpoint}/{full}", str(commit.oid), commit.oid != about.sha)


def _token() -> str:
    if huggingface_hub.constants.is_offline_mode():
        raise UserError(
            "the hub is switched off by HF_HUB_OFFLINE", where="push", remedy="unset it, or --dry-run"
        )
    token = huggingface_hub.get_token()
    if not token:
        raise UserError("no token for the Hugging Face hub", where="push", remedy=HOW_TO_LOG_IN)
    return token


@contextmanager
def _patient() -> Iterator[None]:
    """huggingface_hub's client, but one that gives up after TIMEOUT."""
    own = huggingface_hub.get_session()
    kind, hooks = type(own), own.event_hooks
    huggingface_hub.set_client_factory(
        lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=TIMEOUT)
    )
    try:
        yield
    finally:
        huggingface_hub.close_session()


@contextmanager
def _told(repo: str) -> Iterator[None]:
    """What the hub or the network refuse, in one line."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise UserError("the hub is switched off by HF_HUB_OFFLINE", where="push") from None
    except HfHubHTTPError as error:
        raise _refused(error, repo) from None
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        cause = error.__cause__ or error  # an upload's error wraps the one that says why
        if isinstance(cause, HfHubHTTPError):
            raise _refused(cause, repo) from None
        where = blot(huggingface_hub.constants.ENDPOINT)
        raise UserError(
            f"{type(cause).__name__}: {_first_line(cause)}",
            where=where,
            remedy="check the network (behind a proxy: HTTPS_PROXY), then the same command again",
        ) from None


def _refused(error: HfHubHTTPError, repo: str) -> UserError:
    status = error.response.status_code
    if status == 401:
        return UserError("the hub does not accept the token", where=repo, remedy=HOW_TO_LOG_IN)
    if status == 403:
        return UserError(
            "the token may not write there",
            where=repo,
            remedy="name a repository of your own, or use a token with the right to write there",
        )
    what = error.server_message or _first_line(error)
    return UserError(f"the hub answers {status}: {blot(' '.join(what.split()))[:300]}", where=repo)


def _first_line(error: BaseException) -> str:
    return next(iter(blot(str(error)).strip().splitlines()), type(error).__name__)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
