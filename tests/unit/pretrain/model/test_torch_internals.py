"""What torch keeps private is used in one module, and a torch that has changed it is refused."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.model import torch_internals
from tests.command_line import ROOT


def private(path: Path) -> set[str]:
    """Dotted names of torch in a module with a part that begins with one underscore."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        name = ""
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
        if re.fullmatch(r"torch(\.\w+)+", name) and any(
            part.startswith("_") and not part.startswith("__") for part in name.split(".")
        ):
            found.add(name)
    return found


def test_private_names_are_in_one_module(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text("import torch\ntorch._x(1)\nfrom torch.utils._pytree import y\n")
    assert private(tmp_path / "seen.py") == {"torch._x", "torch.utils._pytree"}
    users = {
        str(path.relative_to(ROOT))
        for package in ("pretrain", "launch", "data_pipeline")
        for path in (ROOT / package).rglob("*.py")
        if private(path)
    }
    assert users == {"pretrain/model/torch_internals.py"}


@pytest.mark.parametrize("name", torch_internals.OPERATORS)
@pytest.mark.parametrize("change", ["gone", "renamed", "swapped"])
def test_a_changed_operator_is_refused(name: str, change: str) -> None:
    """Red without check_operators."""
    operator, given = getattr(torch.ops.aten, name), set(torch_internals.OPERATORS[name].split())
    schemas = [getattr(operator, overload)._schema for overload in operator.overloads()]
    schema = next(one for one in schemas if given <= {argument.name for argument in one.arguments})
    names = [argument.name for argument in schema.arguments]
    if change == "renamed":
        names[1] = "other"
    if change == "swapped":
        names[0], names[1] = names[1], names[0]
    packet = SimpleNamespace(
        overloads=lambda: ["only"],
        only=SimpleNamespace(_schema=SimpleNamespace(arguments=[SimpleNamespace(name=one) for one in names])),
    )

    class Operators:
        def __getattr__(self, asked: str) -> Any:
            if asked == name:
                return None if change == "gone" else packet
            return getattr(torch.ops.aten, asked)

    with pytest.raises(RuntimeError, match=f"has no operator {name}"):
        torch_internals.check_operators(Operators())


def test_a_changed_function_is_refused() -> None:
    def mark(tensor: Any, index: int) -> None:
        """Not the names that mark_dynamic has."""

    with pytest.raises(RuntimeError, match="expected t, index"):
        torch_internals.checked(mark, "t", "index")


def test_private_functions_compute_what_public_ones_do() -> None:
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 5, dtype=torch.float64)
    probabilities = scores.softmax(-1)
    (probabilities * weights).sum().backward()
    found = torch_internals.softmax_gradient(weights, probabilities.detach())
    torch.testing.assert_close(found, scores.grad)
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    torch_internals.scale_all(tensors, 0.5)
    assert [float(tensor[0]) for tensor in tensors] == [0.5, 1.0]
