"""Nothing from outside is run: no evaluated text, no pickle and no shell in the source, no object out of YAML, no path
out of a shard."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.shards.shard import BlockError, decode_block, encode_block
from launch.recipe import load_config
from pretrain.run.folder import read_config
from tests.factories.shards import random_examples

ROOT = Path(__file__).parents[3]
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "code", "runpy"}
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"}
OF_FOLDERS = ("pipeline", "from_pretrained", "from_config", "load_adapter")
"""Ways of transformers to load a folder, which may bring code."""
OF_TENSORS = ("nn.Embedding", "FewRows")
"""Classes of torch whose `from_pretrained` takes a tensor."""
LOADERS = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "np.load", "numpy.load"}


def offences(source: str) -> Iterator[str]:
    """What a module may not do, with its line."""
    for node in ast.walk(ast.parse(source)):
        line = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (f"{line}: {a.name}" for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield f"{line}: {node.module}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {k.arg or "**": ast.unparse(k.value) for k in node.keywords}
            if name in BUILTINS | SHELLS or name.startswith(("os.exec", "os.spawn")):
                yield f"{line}: {name}"
            if options.get("shell", "False") != "False":
                yield f"{line}: {name} with a shell"
            if name in LOADERS and options.get("allow_pickle") != "False":
                yield f"{line}: {name}"
            owner, _, method = name.rpartition(".")
            if method in OF_FOLDERS and owner not in OF_TENSORS and not is_safe(options):
                yield f"{line}: {name} without trust_remote_code=False"
            if name.startswith("subprocess.") and node.args and not is_list(node.args[0]):
                yield f"{line}: {name} of a string"


def is_safe(options: dict[str, str]) -> bool:
    """Whether code of a folder is refused, not asked for: by the argument, or by those of the one loader."""
    return options.get("trust_remote_code") == "False" or options.get("**") == "SAFE"


def is_list(node: ast.expr) -> bool:
    """Not a text, of which a shell would make words."""
    return not isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp)


def test_no_source_evaluates_unpickles_or_calls_a_shell() -> None:
    found = {
        f"{path.relative_to(ROOT)}, {offence}"
        for package in ("data_pipeline", "pretrain", "launch")
        for path in (ROOT / package).rglob("*.py")
        for offence in offences(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)", "exec(x)", "import pickle", "from pickle import loads", "import marshal", "os.system(x)",
        "subprocess.run(x, shell=True)", "subprocess.run(f'ls {x}')", "torch.load(x)", "np.load(x)",
        "np.load(x, allow_pickle=True)", "yaml.load(x, Loader=L)",
        "AutoModel.from_pretrained(x)", "pipeline('fill-mask')", "auto.from_config(c)",
        "transformers.pipeline(x, trust_remote_code=True)", "AutoTokenizer.from_pretrained(x, **options)",
        "os.popen(x)", "os.execvp(x, y)",
    ],
)  # fmt: skip
def test_the_scan_sees(source: str) -> None:
    assert list(offences(source))


def test_the_arguments_of_the_one_loader_refuse_code_and_the_network() -> None:
    from pretrain.huggingface.load import SAFE

    assert SAFE == {"local_files_only": True, "trust_remote_code": False}


def test_yaml_makes_no_objects(tmp_path: Path) -> None:
    """At every entry: a recipe, the command line, and the settings that a run folder keeps."""
    canary = tmp_path / "canary"
    call = f"!!python/object/apply:os.mkdir ['{canary}']"
    for text in (f"run: {{dir: {call}}}", f"run: {call}", call):
        (tmp_path / "recipe.yaml").write_text(text)
        with pytest.raises(UserError, match="not YAML"):
            load_config(str(tmp_path / "recipe.yaml"), [])
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UserError, match="not YAML"):
            read_config(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        load_config("demo", [f"data.sources=[{call}]"])
    assert not canary.exists()


@pytest.mark.parametrize(
    "name",
    ["../000000.tokens.npy", "/000000.tokens.npy", "/etc/passwd", "..", "a/../../b", "000000.tokens.py"],
)
@pytest.mark.parametrize("kind", [b"0", b"1", b"2", b"5"])
def test_a_member_under_another_name_or_a_link_is_refused(name: str, kind: bytes) -> None:
    """Absolute and parent paths, hard and symbolic links, folders: a block has its seven members and no other."""
    good = encode_block(0, random_examples(5))
    decode_block(0, np.frombuffer(good, np.uint8))
    for text in (name, "000000.tokens.npy"):
        data = bytearray(good)
        data[:100] = text.encode().ljust(100, b"\0")
        data[156:157] = kind
        if (text, kind) == ("000000.tokens.npy", b"0"):
            continue
        with pytest.raises(BlockError, match=r"expected the member 000000\.tokens\.npy"):
            decode_block(0, np.frombuffer(bytes(data), np.uint8))
