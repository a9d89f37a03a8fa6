"""The keyed draws: equal to numpy's Philox word for word, uniform, and apart from one another."""

import random
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

import data_pipeline
from data_pipeline import jit, rng
from tests.factories.pairs import surprise


def numpy_words(seed, key, purpose, count):
    """numpy adds one to the counter before the first block, so it begins one below (0, purpose, 0, 0)."""
    before = np.array([2**64 - 1, (purpose - 1) % 2**64, 0, 0], np.uint64)
    if purpose == 0:
        before[1:] = 2**64 - 1
    return np.random.Philox(key=np.array([seed, key], np.uint64), counter=before).random_raw(count)


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**64 - 1])
@pytest.mark.parametrize("key", [0, 7, 2**63 + 11])
@pytest.mark.parametrize("purpose", range(6))
def test_words_equal_numpys_philox(seed, key, purpose):
    assert np.array_equal(rng.words(seed, key, purpose, 41), numpy_words(seed, key, purpose, 41))


def test_a_stream_gives_the_words_one_by_one():
    stream = np.zeros(8, np.uint64)
    rng.start(stream, np.uint64(3), np.uint64(4), np.uint64(rng.CORRUPT))
    one_by_one = [int(rng.word(stream)) for _ in range(11)]
    assert one_by_one == rng.words(3, 4, rng.CORRUPT, 11).tolist()


def test_first_words_are_the_first_words():
    keys = np.array([5, 0, 2**64 - 1], np.uint64)
    expected = [rng.words(9, int(key), rng.HELD_OUT, 1)[0] for key in keys]
    assert rng.first_words(9, keys, rng.HELD_OUT).tolist() == expected


def test_seeds_keys_and_purposes_share_no_words():
    streams = [rng.words(s, k, p, 100) for s in (0, 1) for k in (0, 1) for p in range(6)]
    assert len(np.unique(np.concatenate(streams))) == 2400


def draw(function, count, *arguments):
    stream = np.zeros(8, np.uint64)
    rng.start(stream, np.uint64(1), np.uint64(2), np.uint64(3))
    return np.array([function(stream, *arguments) for _ in range(count)])


@pytest.mark.parametrize("n", [1, 2, 7, 24, 1000])
def test_below_is_uniform(n):
    drawn = draw(rng.philox_below, 40_000, n)
    assert drawn.min() >= 0
    assert drawn.max() < n
    if n > 1:
        assert abs(surprise(np.bincount(drawn, minlength=n), np.ones(n))) < 4


def test_below_takes_the_upper_half_of_the_product():
    words = rng.words(1, 2, 3, 1000)
    n = 2**40 + 12345
    assert draw(rng.philox_below, 1000, n).tolist() == [(int(w) * n) >> 64 for w in words]


def test_unit_is_uniform_and_below_one():
    drawn = draw(rng.philox_unit, 40_000)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert abs(surprise(np.histogram(drawn, 64, (0, 1))[0], np.ones(64))) < 4


def test_chi_square_would_see_a_wrong_rate():
    drawn = draw(rng.philox_below, 40_000, 24)
    assert surprise(np.bincount(drawn % 23, minlength=23), np.ones(23)) > 10


def test_permutations_are_uniform():
    orders = list(permutations(range(4)))
    found = [orders.index(tuple(rng.permutation(5, key, rng.SHUFFLE, 4))) for key in range(12_000)]
    assert abs(surprise(np.bincount(found, minlength=24), np.ones(24))) < 4


def test_a_permutation_holds_each_index_once():
    assert np.array_equal(np.sort(rng.permutation(1, 2, 3, 10_001)), np.arange(10_001))
    assert len(rng.permutation(1, 2, 3, 0)) == 0


def test_text_keys_stay_what_they_are():
    assert rng.text_key("books/a.txt#0") == rng.text_key("books/a.txt#0")
    assert rng.text_key("") == 0xE4A6A0577479B2B4
    assert len({rng.text_key(f"books/a.txt#{n}") for n in range(1000)} | {rng.text_key("\ud800")}) == 1001


KERNEL = """
import numpy as np
from {package}.{compiled} import jit
from {package}.{module} import {function}

@jit
def kernel(x):
    return {function}(x, x)

print(kernel(np.uint64(1 << 40)), sum(kernel.stats.cache_hits.values()))
"""


def run_kernel(package: Path) -> list[str]:
    """What kernel.py of `package` prints: its result, and how often it came from the cache."""
    command = [sys.executable, "-m", f"{package.name}.kernel"]
    folder = package.parent
    environment = {"HOME": str(folder / "home")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=folder)
    return done.stdout.split()


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "place", ["beside the modules", pytest.param("in the user's cache", marks=pytest.mark.slow)]
)
def test_compiled_code_is_renewed_when_what_it_calls_changes(tmp_path, place):
    """Also where that is a constant in a file of another folder that has nothing compiled."""
    package = tmp_path / "package"
    for folder in (package, package / "low", package / "high"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    if place != "beside the modules":
        (package / "low/__pycache__").touch()  # as in a container: nothing can be written there
    (package / "low/compiled.py").write_text(Path(jit.__file__).read_text())
    (package / "high/sizes.py").write_text("STEP = 1\n")
    (package / "high/inner.py").write_text(
        "import numpy as np\nfrom package.high.sizes import STEP\nfrom package.low.compiled import inlined\n\n"
        "@inlined\ndef inner(x, y):\n    return x + y - x + np.uint64(STEP)\n"
    )
    (package / "kernel.py").write_text(
        KERNEL.format(package="package", compiled="low.compiled", module="high.inner", function="inner")
    )

    assert run_kernel(package) == [str(2**40 + 1), "0"]
    assert run_kernel(package) == [str(2**40 + 1), "1"], "kept on disk"
    edit(package / "high/sizes.py", "STEP = 1", "STEP = 5")
    assert run_kernel(package) == [str(2**40 + 5), "0"], "and renewed"
    assert (tmp_path / "home/.cache/maskmill").exists() == (place != "beside the modules")


def test_an_edit_of_the_bit_operations_takes_effect(tmp_path):
    """In a copy of this very package: the upper bits of a product, one more of them after the edit."""
    source = Path(data_pipeline.__file__).parent
    package = tmp_path / source.name
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    compiled_module, bits_module = (m.__name__.partition(".")[2] for m in (jit, jit))
    (package / "kernel.py").write_text(
        KERNEL.format(
            package=source.name, compiled=compiled_module, module=bits_module, function="multiply_high"
        )
    )
    assert run_kernel(package) == [str(2**16), "0"]
    edit(
        package / Path(jit.__file__).relative_to(source),
        "ir.Constant(wide, 64)",
        "ir.Constant(wide, 63)",
    )
    assert run_kernel(package) == [str(2**17), "0"]


# The compiled twister draws what Python's `random` draws, in the same order.


@pytest.mark.parametrize("seed", [0, 7, 12345, 2**40])
def test_a_mixture_of_draws_equals_pythons(seed):
    ours, python = rng.python_stream(seed), random.Random(seed)
    choose = random.Random(seed + 1)
    for _ in range(3000):  # several refills of the 624 words
        n = choose.choice([1, 2, 3, 64, 1000, 30522, 2**31, 2**32 - 1])
        assert rng.draw_unit(ours) == python.random()
        assert rng.draw_below(ours, n) == python.randint(0, n - 1)


@pytest.mark.parametrize("length", [0, 1, 2, 700])
def test_shuffle_equals_pythons(length):
    ours, python = rng.python_stream(3), random.Random(3)
    items, expected = np.arange(length), list(range(length))
    rng.shuffle(ours, items)
    python.shuffle(expected)
    assert items.tolist() == expected
    assert rng.draw_unit(ours) == python.random()


def test_a_philox_stream_gives_its_own_draws():
    stream, again = np.zeros(8, np.uint64), np.zeros(8, np.uint64)
    for s in (stream, again):
        rng.start(s, np.uint64(1), np.uint64(2), np.uint64(rng.SEGMENTS))
    assert [rng.draw_below(stream, 10), rng.draw_unit(stream)] == [
        rng.philox_below(again, 10),
        rng.philox_unit(again),
    ]
