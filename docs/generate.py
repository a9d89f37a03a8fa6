"""Write the generated pages of docs/reference and docs/operate: CLI, settings, models and recipes, messages.

    python docs/generate.py            writes them
    python docs/generate.py --check    exits with 1 and names the pages that are stale

Each page is made from what the program itself knows: the help texts of the verbs, the docstrings of the settings, the
recipes with `maskmill plan`'s arithmetic, and the `UserError`s of the source. Change those, then run this again.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

NOTE = "<!-- Written by docs/generate.py: change the source that it reads, then run it again. -->\n\n"
GPUS = 8
"""H100s in one machine, for which the page of models gives GPU hours."""
AREAS = {
    "data_pipeline/io": "Files and object stores",
    "data_pipeline/sources": "Sources",
    "data_pipeline/vocabulary": "Vocabularies",
    "data_pipeline": "Preparing and reading shards",
    "pretrain/huggingface": "Hugging Face folders",
    "pretrain/checkpoint": "Checkpoints",
    "pretrain/run": "Run folders",
    "pretrain/export": "Export and push",
    "pretrain/tasks": "Evaluation tasks",
    "pretrain/evaluate": "Evaluation",
    "pretrain/studies": "Studies",
    "launch/studies": "Studies",
    "pretrain/monitoring": "Trackers",
    "launch": "Command line, recipes and Slurm",
    "pretrain": "Training",
}
"""Folder -> heading of its messages; the longest folder that contains a file decides."""


def cli() -> str:
    """Return the page of all verbs with the text that `maskmill VERB --help` prints, 100 columns wide."""
    import typer
    from click.testing import CliRunner

    from launch.cli import app

    command = typer.main.get_command(app)
    parts = ["# Command line\n\n", NOTE, "`maskmill VERB --help` prints the same.\n"]
    runner = CliRunner(env={"COLUMNS": "100", "TERM": "dumb"})
    for name in command.commands:  # type: ignore[attr-defined]
        shown = runner.invoke(command, [name, "--help"], prog_name="maskmill", terminal_width=100)
        assert shown.exit_code == 0, shown.output
        text = "\n".join(line.rstrip() for line in shown.output.strip().splitlines())
        parts.append(f"\n## {name}\n\n```\n{text}\n```\n")
    return "".join(parts)


def settings() -> str:
    """Return the page of all settings by group, with defaults and meanings."""
    from launch.completion import manual

    groups: dict[str, list[str]] = {}
    for key, value, meaning in manual():
        group = key.rpartition(".")[0]
        shown = value.replace("|", "\\|")
        groups.setdefault(group, []).append(f"### {key}\n\nDefault: `{shown}`\n\n{_escaped(meaning)}\n")
    parts = [
        "# Settings\n\n",
        NOTE,
        "`key=value` on the command line, or the same keys in a YAML recipe. `maskmill settings WORD` prints those\n"
        "that contain WORD. Paths are relative to the folder in which you call `maskmill`.\n",
    ]
    for group, entries in groups.items():
        parts.append(f"\n## {group or 'Starting weights and phases'}\n\n" + "\n".join(entries))
    return "".join(parts)


def models() -> str:
    """Return the table of recipes: size, lengths, tokens, batch, optimizer, rate, GPU hours and exported classes."""
    from data_pipeline.errors import UserError
    from launch.recipe import load_config, recipe_list
    from pretrain.huggingface.registry import chosen_families
    from pretrain.objectives.registry import load
    from pretrain.preflight.forecast import forecast_phases
    from pretrain.preflight.gpus import gpu_named
    from pretrain.preflight.step_time import Cluster

    parts = [
        "# Models and recipes\n\n",
        NOTE,
        f"GPU hours are what `maskmill plan RECIPE --gpus-per-node {GPUS} --gpu h100` forecasts, not measurements.\n"
        "No two GPUs have trained together. Examples of 8,192 tokens took twice the forecast where they were measured\n"
        "([calibration](../evidence/plan_calibration.md#time)).\n"
        "`maskmill train --list` prints a line about each recipe. The first lines of each file in `launch/recipes`\n"
        "say where its numbers come from and what differs from the paper.\n",
    ]
    for listed in recipe_list():
        rows = []
        for name, _ in listed.recipes:
            config = load_config(name, ["data.verify=blocks"])
            try:
                phases = forecast_phases(config, Cluster(1, GPUS, gpu_named("h100", 0.0)), 0.0)
            except UserError:  # of a folder that is not there
                rows.append(
                    f"| `{name}` | train and export the model that it starts from first | | | | | | |"
                )
                continue
            classes = ", ".join(
                f"`{family.export_class}`" for family in chosen_families(load(config).families, config)
            )
            first = phases[0][1]
            lengths = ", ".join(str(phase.config.data.sequence_length) for phase, _ in phases)
            batches = ", ".join(f"{phase.config.train.global_batch:,}" for phase, _ in phases)
            rates = ", ".join(f"{phase.config.optim.lr:g}" for phase, _ in phases)
            tokens = sum(found.tokens for _, found in phases)
            hours = sum(found.seconds * found.cluster.ranks for _, found in phases) / 3600
            rows.append(
                f"| `{name}` | {_millions(first.parameters)} | {lengths} | {_billions(tokens)} | {batches} | "
                f"{config.optim.name}, {rates} | {hours:,.{0 if hours >= 10 else 1}f} | {classes} |"
            )
        parts.append(f"\n## {listed.objective}\n\n{listed.what}.\n\n")
        head = (
            "recipe",
            "parameters",
            "tokens an example",
            "tokens of the run",
            "batch",
            "optimizer, rate",
            "GPU hours",
        )
        parts.append(f"| {' | '.join(head)} | exported as |\n")
        parts.append("|---|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def _millions(count: int) -> str:
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:,.{0 if count >= 1e8 else 1}f} M"


def _billions(count: float) -> str:
    return (
        f"{count / 1e12:.2f} T"
        if count >= 1e12
        else f"{count / 1e9:,.1f} B"
        if count >= 1e8
        else f"{count / 1e6:,.1f} M"
    )


def messages() -> str:
    """Return the index of the messages of all `UserError`s of the source, by area, each with an anchor."""
    by_area: dict[str, dict[str, str]] = {}
    for path in sorted(
        p for package in ("data_pipeline", "pretrain", "launch") for p in (ROOT / package).rglob("*.py")
    ):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "UserError" and call.args:
                for text, entry in _entries(call):
                    by_area.setdefault(_area(path), {})[text] = entry
    parts = [
        "# Troubleshooting by message\n\n",
        NOTE,
        "A mistake is one line: `maskmill: WHERE: MESSAGE (expected ...; HINT)`, and exit code 2. Search this\n"
        "page for a part of the message; `...` stands for names and numbers of your call. What to do when a run\n"
        "breaks, and the lines of warnings, crashes and hangs, is in the [runbook](runbook.md).\n",
    ]
    for area in dict.fromkeys(AREAS.values()):
        if entries := by_area.get(area):
            parts.append(
                f"\n## {area}\n\n" + "".join(entries[text] for text in sorted(entries, key=str.lower))
            )
    return "".join(parts)


def _entries(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield (message, Markdown item) of a call of UserError; several where the message is chosen by a condition."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    for text in _texts(call.args[0]):
        if not re.search(r"[a-z]{2}", text.replace("...", "")):
            continue  # passes on the words of something else
        more = ""
        for name, label in (("expected", "Expected"), ("remedy", "To do"), ("hint", "To do")):
            shown = [t for t in _texts(keywords[name]) if t.strip(". ")] if name in keywords else []
            more += "".join(f" {label}: {_escaped(t)}." for t in shown[:1])
        anchor = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
        yield text, f'- <a id="{anchor}"></a>**{_escaped(text)}**.{more}\n'


def _texts(node: ast.expr) -> list[str]:
    """Return the texts that an expression of literals may give, with ... in place of what is only known at run time."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)]  # type: ignore[misc]
    if isinstance(node, ast.IfExp):
        return _texts(node.body) + _texts(node.orelse)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [left + right for left in _texts(node.left) for right in _texts(node.right)]
    return ["..."]


def _area(path: Path) -> str:
    place = path.relative_to(ROOT).as_posix()
    return AREAS[max((folder for folder in AREAS if place.startswith(f"{folder}/")), key=len)]


def _escaped(text: str) -> str:
    """Return text as Markdown that shows it as it is."""
    return re.sub(r"([<>*\[\]|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))


PAGES = {
    "reference/cli.md": cli,
    "reference/settings.md": settings,
    "reference/models.md": models,
    "operate/messages.md": messages,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check only name those that are stale; return the exit code."""
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / "docs" / name, page()
        if not path.is_file() or path.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, "utf-8")
    for name in stale:
        print(f"{'stale' if '--check' in arguments else 'written'}: docs/{name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
