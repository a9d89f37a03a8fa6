"""Gather the files of an export, each checked against its hash, and upload them to the Hugging Face hub in one commit.

Only known names are listed: other contents of a folder (checkpoints, logs, keys) are never uploaded. Nothing but `push`
uses the network. The only import of huggingface_hub.
"""

import hashlib
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

from data_pipeline.errors import UserError, first_line, redact
from data_pipeline.io.files import canonical_json
from data_pipeline.io.model_folder import CARD, CHANGED, NOTE, changed, noted_hashes, read_json
from pretrain.huggingface.base import Family
from pretrain.huggingface.registry import FAMILIES
from pretrain.run.files import EXPORT, RUN, is_count
from pretrain.run.folder import model_folders
from pretrain.run.metrics import metric

# The files of an export that may be uploaded.

PLACEHOLDER = "THIS_MODEL"
"""Placeholder in a card's snippets for the folder, or for the model's name on the hub, which a push inserts."""
BELONGS = frozenset(
    (
        *(NOTE, CARD, "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("vocab.txt", "vocab.json", "merges.txt"),
        *(file for family in FAMILIES.values() for file in family.beside),
    )
)
"""Names that an export may contain; nothing else is sent."""


@dataclass(frozen=True)
class Upload:
    """The files to send."""

    files: Mapping[str, Path | bytes]
    left_out: tuple[str, ...]
    """Names in the folder that are not part of an export."""
    edited: bool
    """Whether the card differs from the exported one: people may edit it."""
    step: int
    """The run's step at export."""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {
            name: len(file) if isinstance(file, bytes) else file.stat().st_size
            for name, file in self.files.items()
        }


def exported_folders(source: Path) -> list[Path]:
    """Return the exported models in `source`, or of the run in this folder: one, or several in a folder each, if the
    objective exports several. Raises UserError for a run without any."""
    if (source / NOTE).is_file() or not (source / RUN).is_file():
        return model_folders(source) or [source]
    if not (source / EXPORT).is_dir():
        raise UserError("has no export yet", where=source, remedy=f"maskmill export {source}")
    return model_folders(source / EXPORT) or [source / EXPORT]


def newest_step(source: Path) -> int:
    """Return the step of the newest checkpoint of a run folder, by its name; 0 if there is none."""
    markers = source.glob("checkpoints/step-*/checkpoint.json")
    numbers = [marker.parent.name.removeprefix("step-") for marker in markers]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def gather(folder: Path, repo: str) -> Upload:
    """Collect the files of the export in `folder`, after checking its proof and every hash; the card's PLACEHOLDER is
    replaced by the name `repo`. Raises UserError for a folder that is not an export, or was changed."""
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
    return Upload(dict(sorted(sent.items())), tuple(left_out), CARD in different, note["step"])


def _note(folder: Path) -> dict[str, Any]:
    """Return maskmill.json of an export whose proof is valid."""
    path = folder / NOTE
    if not path.is_file():
        raise UserError(
            "not an exported model",
            where=folder,
            expected=f"a folder with {NOTE}, which `maskmill export` writes",
            remedy="maskmill export RUN",
        )
    note = read_json(path)
    noted_hashes(note, path)
    try:
        proof = note.get("proof", {})
        holds = [float(head["difference"]) <= float(head["allowed"]) for head in proof.values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError("malformed", where=path, remedy="export again") from None
    note["step"] = step if is_count(step := note.get("step", 0)) else 0
    if not holds or not all(holds):
        raise UserError("has no proof of equal logits", where=path, remedy="export again")
    return note


# The metadata of a card, as the hub formats it, and the upload.

TIMEOUT = (10.0, 120.0, 120.0, 10.0)
"""Timeout in seconds to connect, read, write and wait for a connection: huggingface_hub's own client has none."""
HOW_TO_LOG_IN = (
    "hf auth login, or a token with the right to write (huggingface.co/settings/tokens) in HF_TOKEN"
)
LICENSES = frozenset(
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
"""Licenses with an identifier on the hub; another one is sent as `other`, with its name."""


TASKS = {
    "fill-mask": "Masked language modelling",
    "text-generation": "Language modelling",
    "feature-extraction": "Pretraining",
}
"""Names of the scored tasks, by the hub's own identifiers."""


@dataclass(frozen=True)
class Pushed:
    """Where the model was uploaded."""

    url: str
    commit: str
    new: bool
    """False: the repository already held all of it, and there is no new commit."""


def front_matter(
    name: str,
    languages: tuple[str, ...],
    license: str,
    scores: Mapping[str, float],
    family: Family,
    base_model: str = "",
) -> str:
    """Return the metadata block at the top of a model card, as the hub's own writer formats it. `base_model`: the model
    that this one comes from."""
    task = family.pipeline or "feature-extraction"
    results = [
        EvalResult(
            task_type=task,
            task_name=TASKS[task],
            dataset_type="held-out",
            dataset_name="held-out documents of the training text",
            metric_type=metric(key).measure or "loss",
            metric_name=key,
            metric_value=round(value, 4),
        )
        for key, value in scores.items()
    ]
    known = license.lower() in LICENSES
    data = ModelCardData(
        language=list(languages) or None,
        license=(license.lower() if known else "other") if license else None,
        license_name=None
        if known or not license
        else re.sub(r"[^a-z0-9.]+", "-", license.lower()).strip("-"),
        library_name="transformers",
        pipeline_tag=task,
        tags=[*family.tags, "maskmill"],
        base_model=base_model or None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def check_name(repo: str) -> None:
    """Raise UserError if `repo` is not a valid repository name."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(
            first_line(error), where="REPO", expected="NAME or OWNER/NAME, as yourname/demo"
        ) from None


def push(upload: Upload, repo: str, private: bool) -> Pushed:
    """Send all files in one commit to `repo`, which is created if it does not exist. Raises UserError if there is no
    token, the hub cannot be reached or refuses them, or if they are to be private and the existing repository is
    public."""
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
    """Return huggingface_hub's client with TIMEOUT."""
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
    """Format an error of the hub or the network in one line."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise UserError("the hub is switched off by HF_HUB_OFFLINE", where="push") from None
    except HfHubHTTPError as error:
        raise _refused(error, repo) from None
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        cause = error.__cause__ or error  # an upload's error wraps the one with the reason
        if isinstance(cause, HfHubHTTPError):
            raise _refused(cause, repo) from None
        where = redact(huggingface_hub.constants.ENDPOINT)
        raise UserError(
            f"{type(cause).__name__}: {first_line(cause)}",
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
    what = error.server_message or first_line(error)
    return UserError(f"the hub answers {status}: {redact(' '.join(what.split()))[:300]}", where=repo)
