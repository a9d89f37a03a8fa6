"""What the project promises about itself: one set of linters, workflows that call make, a site without strays."""

import re

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
    assert {"lint", "docs", "test-all", "test-cluster"} <= called <= targets


def test_each_target_is_explained_at_the_top_of_the_makefile() -> None:
    explained = set(re.findall(r"^# make ([\w-]+)", MAKEFILE, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE).group(1).split())  # type: ignore[union-attr]
    assert explained <= phony
    assert phony - explained <= {"format", "clean"}
