"""What the project promises about itself: one set of linters, workflows that call make, a site without strays."""

import re
import tomllib

import pytest
import yaml

from tests.command_line import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def recipe_of(target: str) -> str:
    return re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE).group(1)  # type: ignore[union-attr]


def test_pre_commit_runs_the_linters_of_make_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    before_a_commit = {hook["entry"].removeprefix(".venv/bin/") for hook in hooks}
    lint = re.findall(r"@\$\(BIN\)/(.*)", recipe_of("lint"))
    named = {re.sub(r" (\.|slurm/.*|docker/.*)$", "", command) for command in lint}
    assert before_a_commit == named
    assert all(hook["language"] == "system" for hook in hooks)  # the environment's own, not another version


def test_workflows_call_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
    called = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yaml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            commands = " ".join(step.get("run", "") for step in job["steps"])
            called |= set(re.findall(r"\bmake ([\w-]+)", commands))
    called |= set(re.findall(r"^part make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    assert {"lint", "docs", "test-all", "test-cluster", "test-torch", "test-fake-gpu"} <= called <= targets


def test_each_torch_that_is_allowed_is_tried_each_night() -> None:
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yaml").read_text())
    tried = nightly["jobs"]["torch"]["strategy"]["matrix"]["torch"]
    assert tried == re.search(r"^TORCH \?= (.*)$", MAKEFILE, re.MULTILINE).group(1).split()  # type: ignore[union-attr]


def test_each_target_is_explained_at_the_top_of_the_makefile() -> None:
    explained = set(re.findall(r"^# make ([\w-]+)", MAKEFILE, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE).group(1).split())  # type: ignore[union-attr]
    assert explained <= phony
    assert phony - explained <= {"format", "clean"}


def test_each_minor_version_of_torch_that_is_allowed_is_tested() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (torch,) = [each for each in wanted if each.startswith("torch")]
    allowed = re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", torch)
    assert allowed is not None, torch
    versions = re.search(r"^TORCH \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert versions is not None
    minors = [version.rpartition(".")[0] for version in versions[1].split()]
    assert minors == [f"2.{minor}" for minor in range(int(allowed[1]), int(allowed[2]))]


@pytest.mark.parametrize(
    ("version", "constraints"),
    [
        ("2.11.0", ["torch==2.11.0", "numpy<2.4"]),
        ("2.12.0", ["torch==2.12.0"]),
        ("2.13.0+cpu", ["torch==2.13.0+cpu"]),
    ],
)
def test_environments_have_what_their_torch_takes(
    version: str, constraints: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"^CONSTRAINTS := (.*)$", MAKEFILE, re.MULTILINE)
    assert code is not None
    monkeypatch.setattr("importlib.metadata.version", lambda package: version)
    exec(code[1], {})
    assert capsys.readouterr().out.split() == constraints
    for target, folder in ((r"\$\(STAMP\)", "VENV"), (r"\$\(VENV_TORCH\)/\.ready", "VENV_TORCH")):
        recipe = recipe_of(target)
        assert f"python -c '$(CONSTRAINTS)' > $({folder})/torch.txt" in recipe.replace(
            "$(BIN)", "$(VENV)/bin"
        )
        assert f"install --constraint $({folder})/torch.txt --editable" in recipe


def test_no_two_test_modules_have_one_name() -> None:
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    assert len(paths) > 200
    assert not [same for same in found.values() if len(same) > 1], "pytest imports the first one alone"
