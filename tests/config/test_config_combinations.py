"""Impossible combinations: refused with the field's path and the fix, before anything is loaded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.config import check_context, make_config
from rloop_core.errors import ConfigError


def config(**sections):
    return make_config({"problems": {"source": "gsm8k"}, **sections})


@pytest.mark.parametrize(
    ("sections", "field", "fix"),
    [
        ({"explore": {"group_size": 24}}, "explore.group_size", "multiple of 24"),
        ({"explore": {"problems_per_step": 33}}, "explore.mini_batch_rollouts", "divisor of 528"),
        ({"explore": {"mini_batch_rollouts": 16384}}, "explore.mini_batch_rollouts", "divisor of 8192"),
        ({"explore": {"group_size": 1}}, "explore.group_size", ""),
        ({"explore": {"overlong": {"buffer_tokens": 2048}}}, "explore.overlong.buffer_tokens", "shorter"),
        ({"explore": {"reward_wrong": 1.0}}, "explore.reward_correct", "1 and -1"),
        ({"explore": {"snapshot_every": 7}}, "explore.snapshot_every", "divisor"),
        ({"harvest": {"snapshot_samples": 4}}, "harvest.snapshot_samples", "explore.snapshot_every"),
        ({"filter": {"threshold": 0}}, "filter.threshold", "paper uses 0.10"),
        ({"filter": {"threshold": 1}}, "filter.threshold", "filter.active_learning"),
        ({"filter": {"threshold": -0.1}}, "filter.threshold", "paper uses 0.10"),
        ({"filter": {"threshold": 1.7}}, "filter.threshold", "paper uses 0.10"),
        ({"filter": {"threshold": 0.3, "on_empty": "widen"}}, "filter.widen_to", "rising thresholds"),
        ({"filter": {"on_empty": "widen", "widen_to": []}}, "filter.widen_to", "rising thresholds"),
        ({"filter": {"on_empty": "shrug"}}, "filter.on_empty", ""),
        (
            {"explore": {"engine": "vllm"}, "placement": {"processes": 4, "vllm": {"tensor_parallel": 3}}},
            "placement.vllm.tensor_parallel",
            "choose a divisor",
        ),
        ({"problems": []}, "problems", "a list of sources"),
        ({"problems": [{"source": "gsm8k"}, {"source": "gsm8k"}]}, "problems", "give one a `name`"),
        ({"problems": [{"source": "gsm8k"}, {"source": "aime24", "wieght": 2}]}, "problems.1.wieght", "'weight'"),
        ({"problems": [{"source": "gsm8k"}, {"source": "f.jsonl", "reward": "exct"}]}, "problems.1.reward", "exact"),
        (
            {"problems": {"source": "a.jsonl", "reward": "exact"}, "evaluate": {"sets": [{"source": "a.jsonl"}]}},
            "problems",
            "give one a `name`",
        ),
        ({"filter": {"at_least": 100}}, "filter.at_least", "set on_empty to widen"),
        ({"filter": {"min_attempts": 0}}, "filter.min_attempts", ""),
        ({"filter": {"weighting": "difficulty", "active_learning": False}}, "filter.weighting", "gamma to 0"),
        ({"filter": {"max_per_problem": 0}}, "filter.max_per_problem", ""),
        ({"evaluate": {"samples": 16}}, "evaluate.k", "samples to 32"),
        ({"evaluate": {"sets": [{"source": "aime24"}, {"source": "aime24"}]}}, "evaluate.sets", "`name`"),
        (
            {"evaluate": {"sets": [{"source": "math500"}, {"source": "aime24", "samples": 8}]}},
            "evaluate.sets.1.k",
            "a k of its own",
        ),
        ({"evaluate": {"sets": [{"source": "aime24", "k": [64]}]}}, "evaluate.sets.0.k", "samples to 64"),
        (
            {"policy": {"context_tokens": 4096}, "prompt": {"max_tokens": 2049}},
            "prompt.max_tokens",
            "lower prompt.max_tokens to at most 2048",
        ),
        (
            {"policy": {"context_tokens": 4096}, "evaluate": {"max_completion_tokens": 4000}},
            "prompt.max_tokens",
            "at most 96",
        ),
    ],
)
def test_refused_by_path_with_the_fix(sections, field, fix):
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    assert caught.value.field == field
    assert fix in (caught.value.fix or "")


def test_the_papers_setting_fits_its_context_exactly_also_where_that_is_read_from_the_model():
    config(policy={"context_tokens": 4096}, prompt={"max_tokens": 2048}, explore={"max_completion_tokens": 2048})
    fitting = config()
    check_context(fitting, 4096, "config.json")
    check_context(fitting, None, "unknown")
    with pytest.raises(ConfigError) as caught:
        check_context(fitting, 4095, "/models/x/config.json")
    assert "/models/x/config.json" in caught.value.what
    assert "2047" in caught.value.fix


@settings(max_examples=150)
@given(problems=st.integers(1, 40), group=st.integers(2, 12), batch=st.integers(1, 480))
def test_updates_cover_the_rl_step_in_whole_groups_or_the_config_is_refused(problems, group, batch):
    explore = {"problems_per_step": problems, "group_size": group, "mini_batch_rollouts": batch}
    possible = batch % group == 0 and (problems * group) % batch == 0
    if possible:
        made = config(explore=explore).explore
        assert made.updates_per_step * made.mini_batch_rollouts == made.rollouts_per_step == problems * group
    else:
        with pytest.raises(ConfigError) as caught:
            config(explore=explore)
        assert caught.value.field in ("explore.group_size", "explore.mini_batch_rollouts")
