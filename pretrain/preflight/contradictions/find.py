"""Find settings that contradict each other, with what to change."""

from collections.abc import Iterator

from pretrain.config.settings import RunConfig
from pretrain.preflight.contradictions.data import data_rules, exact_mode_rules
from pretrain.preflight.contradictions.model import encoder_rules, objective_rules
from pretrain.preflight.contradictions.places import place_rules
from pretrain.preflight.contradictions.rule import Rule
from pretrain.preflight.contradictions.training import length_rules, schedule_rules, training_rules

GROUPS = (
    place_rules,
    data_rules,
    exact_mode_rules,
    objective_rules,
    encoder_rules,
    training_rules,
    length_rules,
)


def contradictions(config: RunConfig, schedule_steps: int) -> Iterator[Rule]:
    """Return the broken rules; `schedule_steps`: the length of the schedule. Each single value must already be in its
    range (preflight/ranges.py)."""
    for rules in (*(group(config) for group in GROUPS), schedule_rules(config, schedule_steps)):
        yield from (rule for rule in rules if rule.broken)
