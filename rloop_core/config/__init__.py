"""One frozen config tree: YAML in, JSON Schema out; identity and placement kept apart."""

from rloop_core.config.base import Impossible
from rloop_core.config.evaluation import EvaluateConfig, EvaluatedSet
from rloop_core.config.identity import (
    DecontaminateConfig,
    DynamicSamplingConfig,
    ExploreConfig,
    FilterConfig,
    HarvestConfig,
    PolicyConfig,
    ProblemSource,
    PromptConfig,
    RFTConfig,
)
from rloop_core.config.loading import json_schema, load_config, make_config
from rloop_core.config.lora import LoraConfig
from rloop_core.config.placement import PlacementConfig
from rloop_core.config.tree import Config, as_vanilla, check_context

__all__ = [
    "Config",
    "DecontaminateConfig",
    "DynamicSamplingConfig",
    "EvaluateConfig",
    "EvaluatedSet",
    "ExploreConfig",
    "FilterConfig",
    "HarvestConfig",
    "Impossible",
    "LoraConfig",
    "PlacementConfig",
    "PolicyConfig",
    "ProblemSource",
    "PromptConfig",
    "RFTConfig",
    "as_vanilla",
    "check_context",
    "json_schema",
    "load_config",
    "make_config",
]
