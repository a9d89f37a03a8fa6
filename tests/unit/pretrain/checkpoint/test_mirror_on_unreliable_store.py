"""The mirror on a store that answers with errors, cuts bodies, or lists what was there before: right, or one line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from pretrain.checkpoint.mirror import Mirror, bring_back
from pretrain.checkpoint.store import newest_checkpoint
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from tests.factories.checkpoints import is_right, save
from tests.factories.unreliable_store import LISTING, ProxyServer, every, unreliable
from tests.unit.pretrain.checkpoint.test_mirror import IDENTITY, elsewhere, made

pytestmark = pytest.mark.slow


@pytest.fixture
def store(endpoint: str) -> Iterator[ProxyServer]:
    with unreliable(endpoint) as server:
        yield server


def brought(config: RunConfig, tmp_path: Path, name: str) -> int | None:
    """The step that comes back from the mirror, whose checkpoint is right."""
    fresh = elsewhere(config, tmp_path, name)
    bring_back(fresh, IDENTITY)
    found = newest_checkpoint(Path(fresh.run.dir))
    assert found is None or is_right(found)
    return found and found.step


@pytest.mark.parametrize(("fault", "method"), [("500", ""), ("500", "PUT"), ("500", "GET"), ("cut", "GET")])
def test_what_fails_now_and_then_is_tried_again(
    store: ProxyServer, fault: str, method: str, tmp_path: Path
) -> None:
    config = made(tmp_path, f"now-and-then-{fault}-{method}")
    store.fault = every(3, fault, method)
    for step in (5, 10):
        Mirror(config).copy(save(Path(config.run.dir), step), World())
    assert brought(config, tmp_path, "fresh") == 10
    assert store.spoilt > 3


@pytest.mark.parametrize("fault", ["500", "cut"])
def test_what_keeps_failing_is_one_line_and_leaves_nothing(
    store: ProxyServer, fault: str, tmp_path: Path
) -> None:
    config = made(tmp_path, f"keeps-{fault}")
    Mirror(config).copy(save(Path(config.run.dir), 5), World())
    store.fault = every(1, fault, "GET", "safetensors")
    with pytest.raises(UserError, match="cannot be read") as caught:
        brought(config, tmp_path, "fresh")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "fresh" / "checkpoints").glob("*"))
    store.fault = every(1, "500", "PUT")
    with pytest.raises(UserError, match="cannot be written"):
        Mirror(config).copy(save(Path(config.run.dir), 10), World())
    store.fault = every(1, "")
    assert brought(config, tmp_path, "fresh") == 5


@pytest.mark.parametrize("keep", [1, 3])
def test_a_listing_of_before_hides_no_checkpoint(store: ProxyServer, keep: int, tmp_path: Path) -> None:
    """With keep=1 the copy that it still shows is gone, and the new one is in no listing: a run must not start over."""
    config = made(tmp_path, f"stale-{keep}", keep=keep)
    Mirror(config).copy(save(Path(config.run.dir), 5), World())
    assert brought(config, tmp_path, "before") == 5
    store.fault = every(1, "stale", "GET", LISTING)
    Mirror(config).copy(save(Path(config.run.dir), 10), World())
    assert brought(config, tmp_path, "meanwhile") == 10
    assert Mirror(config).has(10)
    Mirror(config).copy(save(Path(config.run.dir), 15), World())
    assert brought(config, tmp_path, "later") == 15
    assert store.spoilt > 3
    store.fault = every(1, "")
    assert brought(config, tmp_path, "after") == 15
