"""Upload the files of an export to a Hugging Face hub repository in one commit.

The only import of huggingface_hub.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import huggingface_hub
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from data_pipeline.errors import UserError, first_line, redact
from pretrain.export.bundle import Upload
from pretrain.huggingface.base import Family

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
            metric_type=next(
                (kind for kind in ("accuracy", "perplexity", "auc") if key.endswith(kind)), "loss"
            ),
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
