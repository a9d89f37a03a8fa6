"""List rules of the places that a run reads and writes."""

from data_pipeline.errors import redact, redact_settings
from data_pipeline.io.object_store import STORES
from pretrain.config.settings import RunConfig
from pretrain.preflight.contradictions.rule import Rule
from pretrain.preflight.ranges import value_of

KEYS_IN_ENVIRONMENT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the store's own package reads"


def place_rules(config: RunConfig) -> list[Rule]:
    """List what must be a local folder, an object store, or free of credentials."""
    mirror = config.checkpoint.mirror
    return [
        *(
            Rule(
                "://" in value_of(config, key),
                f"{key}={value_of(config, key)} is a URI",
                "name a local or shared folder",
            )
            for key in ("run.dir", "data.vocab", "data.work", "data.tokens", "init_from")
        ),
        Rule(
            bool(mirror) and mirror.partition("://")[0] not in STORES,
            f"checkpoint.mirror={mirror} is not in an object store",
            f"begin it with {' or '.join(f'{store}://' for store in STORES)}",
        ),
        *(
            Rule(
                redact_settings(value_of(config, key)) != value_of(config, key),
                f"{key} holds credentials, and would be written to the run folder",
                KEYS_IN_ENVIRONMENT,
            )
            for key in ("checkpoint.mirror", "data.out", "train.shards")
        ),
        Rule(
            any(redact(uri) != uri for uri in config.data.sources if uri.partition("://")[0] in STORES),
            "data.sources holds credentials, which no object store reads there",
            KEYS_IN_ENVIRONMENT,
        ),
        Rule(
            config.init_moments and not config.init_from,
            "init_moments=true without init_from",
            "set init_from to the run whose moments to keep",
        ),
    ]
