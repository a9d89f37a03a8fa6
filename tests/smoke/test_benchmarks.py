"""The benchmarks run as their own help says, on next to nothing, so that they work on the day they are needed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.peers import GOOGLE, LDDL, Work, peer_name
from tests.benchmarks.step_profile import kind_of
from tests.command_line import ROOT, VOCABULARY, environ, write_text
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

pytestmark = pytest.mark.slow

PLAIN = [
    path.name
    for path in sorted((ROOT / "tests/benchmarks").glob("bench_*.py"))
    if f" python tests/benchmarks/{path.name}" in path.read_text()
]
"""Those whose help says that they are started so, not as modules."""

# A script of its own that uses all of TensorFlow that the peer's does.
TOKENIZATION = """
import tensorflow as tf

class FullTokenizer:
    def __init__(self, vocab_file, do_lower_case):
        with tf.gfile.GFile(vocab_file, "r") as file:
            self.ids = {word.strip(): number for number, word in enumerate(file)}
"""
SCRIPT = """
import collections, tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_bool("do_whole_word_mask", False, "help")

def create_training_instances(files, tokenizer, length, passes, short, share, most, rng):
    assert FLAGS.do_whole_word_mask is False
    with tf.gfile.GFile(files[0], "r") as reader:
        lines = [line.split() for line in reader if line.strip()]
    return lines * passes

def write_instance_to_example_files(instances, tokenizer, length, most, files):
    writer = tf.python_io.TFRecordWriter(files[0])
    for words in instances:
        ids = tf.train.Feature(int64_list=tf.train.Int64List(value=[tokenizer.ids.get(w, 100) for w in words]))
        weights = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
        assert not weights.int64_list.value
        features = collections.OrderedDict(ids=ids, weights=weights)
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(example.SerializeToString())
    writer.close()
    tf.logging.info("Wrote %d total instances", len(instances))
"""

RUN = """
import sys
from tests.benchmarks import bench_prepare, peers
bench_prepare.alone = lambda function, *arguments: function(*arguments)
bench_prepare.main()
"""


def run(code: str, *arguments: str) -> str:
    """What a Python process prints."""
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environ(),
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "peer"
    folder.mkdir()
    (folder / "tokenization.py").write_text(TOKENIZATION)
    (folder / "create_pretraining_data.py").write_text(SCRIPT)
    return folder


def test_the_mill_beside_a_peer_stage_by_stage_and_as_a_whole(tmp_path: Path, checkout: Path) -> None:
    write_text(tmp_path / "text.txt", documents=60)
    given = [
        f"--source={tmp_path}/text.txt",
        f"--vocab={VOCABULARY}",
        f"--peer={checkout}",
        f"--folder={tmp_path}",
    ]
    sizes = [
        "--megabytes=0.02",
        "--peer-megabytes=0.01",
        "--lengths",
        "64",
        "--passes",
        "2",
        "--repetitions=1",
    ]
    printed = run(RUN, *given, *sizes)
    for stage in ("reading", "tokenization", "gathering", "pairs", "masks", "shuffling", "writing shards"):
        assert f" {stage} " in printed
    assert "Maskmill" in printed
    assert GOOGLE in printed
    assert "sentencex" in printed
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("tmp")] == []


def test_a_peers_records_are_written_through_the_stand_in(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "text.txt").write_text("the sea\n\na ship\n")
    code = (
        "import sys; from pathlib import Path; from tests.benchmarks.peers import *; "
        f"print(run_peer(Path(sys.argv[1]), Work(Path(sys.argv[2]), Path({str(VOCABULARY)!r}), 64, 3), "
        "Path(sys.argv[3])).seconds > 0)"
    )
    assert run(code, str(checkout), str(tmp_path / "text.txt"), str(tmp_path)) == "True\n"
    # a length, two ids of 8 bytes and a weight of 4, for two lines in three passes
    assert (tmp_path / "examples.tfrecord").stat().st_size == 6 * (8 + 2 * 8 + 4)


def test_peers_are_known_by_their_files(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "lddl/dask/bert").mkdir(parents=True)
    (tmp_path / "lddl/dask/bert/pretrain.py").touch()
    assert peer_name(checkout) == GOOGLE
    assert peer_name(tmp_path) == LDDL
    with pytest.raises(ValueError, match="no checkout of a peer"):
        peer_name(tmp_path / "lddl")
    assert [Work(tmp_path, tmp_path, n, 1).max_predictions for n in (128, 512)] == [20, 77]


def test_the_loader_beside_others(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.benchmarks.bench_loader import *; "
        "Console(width=120).print(measure(Path(sys.argv[1]), 2000, 32, 0.05))"
    )
    printed = run(code, str(tmp_path))
    assert "Maskmill, packed" in printed
    assert "WebDataset" in printed


def test_a_lamb_step_beside_its_floor_and_its_peers() -> None:
    script = str(ROOT / "tests/benchmarks/bench_lamb.py")
    code = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
    sizes = ["--layers=1", "--hidden=32", "--vocabulary=200", "--copy-mb=1", "--rounds=2", "--threads=1"]
    printed = run(code, *sizes, "--profile")
    for words in (
        "39,906 parameters in 30 tensors, fp32",
        "Maskmill, torch",
        "DeepSpeed FusedLamb",
        "torch fused AdamW and norms",
        "five steps of Maskmill",
        "aten::",
    ):
        assert words in printed


@pytest.mark.parametrize("name", PLAIN)
def test_a_benchmark_is_a_plain_script(name: str, tmp_path: Path) -> None:
    """From any folder, without a variable that says where the checkout is; an installation knows nothing of tests."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, str(ROOT / "tests/benchmarks" / name), "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {name}" in done.stdout
    assert "bench_gpu.py" in PLAIN


def test_the_gpu_benchmark_names_one_gpu() -> None:
    code = "from tests.benchmarks.bench_gpu import with_index; import torch;"
    printed = run(code + "print(*(with_index(torch.device(d)) for d in ('cuda', 'cuda:1', 'cpu')))")
    assert printed.split() == ["cuda:0", "cuda:1", "cpu"]


@pytest.mark.parametrize("given", [["--row=large-512"], ["--engine=plain", "--deterministic=on"]])
def test_the_gpu_benchmark_on_a_cpu(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row that is asked for, on both engines and in both modes unless told otherwise."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tiny = "--device=cpu --tiny --compile=off --steps=1 --windows=1 --accumulation=2 --vocabulary=300"
    code = "from tests.benchmarks.bench_gpu import main; main()"
    printed = run(code, *tiny.split(), f"--json={tmp_path}/found.json", *given)
    found = json.loads((tmp_path / "found.json").read_text())
    cases = [f"{case['row']} {case['engine']} {case['deterministic']}" for case in found]
    if len(given) == 1:
        assert cases == [
            f"large-512 {engine} {d}" for engine in ("deepspeed", "plain") for d in ("on", "off")
        ]
    else:
        rows = ("large-128", "large-512", "base-128", "modern-1024", "modern-8192", "global-8192")
        assert cases == [f"{row} plain on" for row in rows]
    assert all(case["examples_per_second"] > 0 for case in found)
    assert printed.count("top kernels of one step") == len(cases)
    assert "attention by tiles, not compiled, deterministic kernels" in printed


def test_the_peer_of_the_gpu_benchmark_on_a_cpu(tmp_path: Path) -> None:
    tiny = "--device=cpu --tiny --compile=off --steps=1 --windows=1 --accumulation=2 --vocabulary=300"
    rows = ("large-512", "modern-8192")
    code = "from tests.benchmarks.bench_gpu_peer import main; main()"
    printed = run(code, *tiny.split(), f"--json={tmp_path}/found.json", "--row", *rows)
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(case["row"], case["attention"]) for case in found] == [(row, "sdpa") for row in rows]
    assert all(case["examples_per_second"] > 0 for case in found)
    assert "a step of 8 examples" in printed


def test_a_training_step_beside_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = "from tests.benchmarks.bench_step import main; main()"
    sizes = "--layers=1 --hidden=64 --examples=4 --length=32 --threads=1 --rounds=1 --steps=1"
    printed = run(code, *sizes.split(), "--contenders", "ours", "trainer")
    assert "Maskmill, packed" in printed
    assert "transformers' Trainer, padded" in printed
    (share,) = re.findall(r"Maskmill, packed .* waited for data (\d+\.\d\d)%\n", printed)
    assert 0 <= float(share) < 100


def test_fine_tuning_beside_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write(tmp_path / "CoLA", FILES["cola"])
    code = "from tests.benchmarks.bench_evaluate import main; main()"
    sizes = f"{encoder_folder('bert')} --data={tmp_path} --task=cola --train=2 --dev=1 --rounds=1 --threads=1"
    printed = run(code, *sizes.split())
    assert "cola: 2 training examples of" in printed
    ratios = re.findall(r"(?m)^(?:Maskmill|transformers' Trainer, ).* ratio (\d+\.\d\d); scoring", printed)
    assert len(ratios) == 4
    assert ratios[0] == "1.00"


@pytest.mark.parametrize(
    ("name", "shapes", "kind"),
    [
        ("aten::mm", [[416, 256], [256, 1000]], "vocabulary"),
        ("aten::mm", [[416, 1024], [1024, 256]], "vocabulary"),
        ("aten::_log_softmax", [[416, 1000], [], []], "vocabulary"),
        ("aten::addmm", [[256], [416, 256], [256, 256]], "products"),
        ("aten::bmm", [[8, 64, 32], [8, 32, 64]], "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [[1, 4, 64, 64]], "attention"),
        ("aten::gelu", [[416, 256]], "rest"),
        ("aten::add_", [[1000], [1000], []], "rest"),
    ],
)
def test_the_profile_knows_operators_by_name_and_shape(name: str, shapes: list[list[int]], kind: str) -> None:
    """Of 1,000 words, which ours pads to 1,024."""
    assert kind_of(name, shapes, 1000) == kind


def test_checkpoints_beside_deepspeeds(tmp_path: Path) -> None:
    code = "from tests.benchmarks.bench_checkpoint import main; main()"
    sizes = [
        "--layers=1",
        "--hidden=64",
        "--vocabulary=500",
        "--rounds=1",
        "--steps=2",
        "--saves=2",
        "--threads=1",
    ]
    printed = run(code, f"--folder={tmp_path}", *sizes)
    assert "of the wall time of its 500 steps" in printed
    assert "ours: load, verified" in printed
    assert "DeepSpeed: load" in printed
    assert list(tmp_path.iterdir()) == []
