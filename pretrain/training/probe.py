"""Score the model on a small task while it trains (train.probe).

The first rank gets the weights of all, as transformers' model of what the run exports, and scores it; the others wait.
Training keeps the same bits as without: the engine is only read, and no generator of training is drawn from."""

from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.partition_map import whole_weights
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.model.initialize import without_padding
from pretrain.preflight.check_run import Plan
from pretrain.run.metrics_log import PROBE_PREFIX
from pretrain.training.validation import Figures


class Probe:
    """The task of train.probe, read once."""

    def __init__(self, config: RunConfig, plan: Plan, world: World) -> None:
        """Read the task's files. All ranks call this; if the first cannot, all raise UserError."""
        self._config, self._plan, self._world = config, plan, world
        self.name = config.train.probe
        """Empty: there is none."""
        if self.name:
            raise_on_all_ranks(world, self._read)

    def _read(self) -> None:
        if self._world.rank:
            return
        from pretrain.evaluate.probe import ProbeTask

        self._task = ProbeTask.read(self.name, Path(self._config.train.probe_data))
        self._tokenizer = self._plan.index.tokenizer_json().decode("utf-8")

    def evaluate(self, engine: Engine) -> Figures:
        """Return the figures of the model as it is, in percent, on every rank. All ranks call this."""
        weights = whole_weights(engine.partition, self._world)
        found: Figures = {}

        def score() -> None:
            if self._world.rank == 0:
                found.update(self._score(without_padding(engine.module, weights)))

        raise_on_all_ranks(self._world, score)
        return {f"{PROBE_PREFIX}{name}": value for name, value in self._world.broadcast(found).items()}

    def _score(self, state: dict[str, Tensor]) -> dict[str, float]:
        """Score the model of these weights, of our names, as what the run exports; of several models the one that
        `maskmill evaluate` takes."""
        from pretrain.evaluate.evaluate import pick_encoder
        from pretrain.export.export import write_without_weights
        from pretrain.tasks.encoders import InMemory

        with TemporaryDirectory(prefix="maskmill-probe-") as folder:
            families = write_without_weights(self._config, self._tokenizer, Path(folder))
            chosen = pick_encoder(self.name, list(families)).folder
            fields = families[chosen].config(self._config, self._plan.index.vocabulary)
            weights = families[chosen].to_hugging_face(state, fields)
            return self._task.score(InMemory(chosen, weights=weights))
