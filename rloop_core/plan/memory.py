"""Memory of one device in each heavy stage, and which setting makes it fit."""

from __future__ import annotations

from dataclasses import dataclass

from rloop_core.config import Config
from rloop_core.plan.models import ModelShape
from rloop_core.plan.sharding import DDP, ONE, ZERO3, Sharding, ladder, sharding_named, training_states
from rloop_core.rollout.vllm_server import asks_server

GIB = 2**30
USABLE = 0.95
"""Share of a device's memory that can be planned with; the allocator's gaps and CUDA's own take the rest."""
HEAD_TOKENS, HEAD_COLUMNS = 4096, 32768
"""The head's scores are computed in tiles of so many tokens and words (TRL's fused head), never for a whole batch."""


@dataclass(frozen=True)
class StageMemory:
    """One stage on one device.

    Attributes:
        stage: explore, rft or evaluate.
        parts: Bytes by kind, those that are there at the same time.
        available: Bytes of the device.
        fixes: Settings that make it fit, or what else would; empty when it fits.
    """

    stage: str
    parts: dict[str, float]
    available: float
    fixes: tuple[str, ...]

    @property
    def needed(self) -> float:
        """Bytes at the peak."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the peak is within the device."""
        return self.needed <= self.available


def stage_memories(
    config: Config, shape: ModelShape, available: float, devices: int, way: Sharding | None = None
) -> list[StageMemory]:
    """Peaks of explore, rft and evaluate, on devices that share training out so; None takes what `sharding_of` says."""
    way = way or sharding_of(config, shape, available, devices)
    stages = [_explore(config, shape, available, devices, way), _rft(config, shape, available, devices, way)]
    return [*stages, _evaluate(config, shape, available)] if config.evaluate.sets else stages


def sharding_of(config: Config, shape: ModelShape, available: float, devices: int) -> Sharding:
    """How the config shares training states out; where it does not say, the fastest way in which it fits as it is.

    Where it fits in none, the fastest that leaves room for smaller batches. One device keeps all of it: host memory is
    used only by who asks for it.
    """
    if (named := sharding_named(config)) is not None:
        return named
    ways = (ONE,) if devices == 1 else ladder(devices)[:3]
    fitting = (way for way in ways if _fits(config, shape, available, devices, way))
    roomy = (way for way in ways if _leaves_room(config, shape, available, devices, way))
    lean = (way for way in ways if _leaves_room(_with_checkpointing(config), shape, available, devices, way))
    return next(fitting, None) or next(roomy, None) or next(lean, ways[-1])


def fewest_devices(config: Config, shape: ModelShape, available: float) -> int:
    """The smallest power of two of devices on which it fits as it is, else with smaller batches; 1 if on none."""
    counts = (1, 2, 4, 8, 16, 32, 64)
    for check in (_fits, _leaves_room):
        for devices in counts:
            if check(config, shape, available, devices, sharding_of(config, shape, available, devices)):
                return devices
    return 1


def generated_together(config: Config, devices: int) -> int:
    """Rollouts of one RL step that a device generates at a time."""
    return min(config.placement.generation_batch, -(-config.explore.rollouts_per_step // devices))


def uses_vllm(config: Config, stage: str) -> bool:
    """Whether vLLM draws a stage's completions."""
    return (config.explore.engine if stage == "explore" else config.placement.engine) == "vllm"


def activation_bytes(config: Config, shape: ModelShape, sequences: int) -> dict[str, float]:
    """Activations of one forward-backward pass, and the head's scores.

    A layer keeps about 10 h + 4 m values a token (norms, q, k, v, attention, residuals; the gated MLP), an adapter its
    own few beside; with gradient checkpointing only its input, and one layer at a time whole.
    """
    element = _element(config)
    tokens = sequences * (config.prompt.max_tokens + config.explore.max_completion_tokens)
    layer = (10 * shape.hidden + 4 * shape.intermediate) * element
    kept = (
        shape.layers * shape.hidden * element + layer
        if config.placement.gradient_checkpointing
        else shape.layers * layer
    )
    scores = min(tokens, HEAD_TOKENS) * min(shape.vocab, HEAD_COLUMNS) * element
    scores += 0 if config.lora.enabled else 4 * shape.vocab * shape.hidden  # the gradient of its weights, in float32
    return {"activations": tokens * kept, "head": float(scores)}


def _explore(config: Config, shape: ModelShape, available: float, devices: int, way: Sharding) -> StageMemory:
    states = training_states(config, shape, way, devices)
    micro = config.placement.micro_batch_rollouts or config.explore.mini_batch_rollouts // devices or 1
    passes = activation_bytes(config, shape, micro)
    fixes = _pass_fixes(config, shape, available, devices, states, micro, "placement.micro_batch_rollouts")
    if asks_server(config):
        drawing, more = dict[str, float](), list[str]()
    elif uses_vllm(config, "explore"):
        drawing, more = _beside_vllm(config, shape, available, states)
    else:
        drawing, more = _beside_generate(config, shape, available, devices, states, way)
    larger = passes if sum(passes.values()) > sum(drawing.values()) else drawing
    return StageMemory("explore", {**states, **larger}, available, (*fixes, *more))


def _beside_generate(
    config: Config, shape: ModelShape, available: float, devices: int, states: dict[str, float], way: Sharding
) -> tuple[dict[str, float], list[str]]:
    """What generation takes beside the states: the cache, and whole weights where they are shared out."""
    one = _sequence_bytes(config, shape, config.explore.max_completion_tokens)
    together = generated_together(config, devices)
    drawing = {"key-value cache": float(together * one)}
    if way.gathers:
        drawing["whole weights"] = float(_element(config) * shape.parameters)
    room = available - sum(states.values()) - drawing.get("whole weights", 0.0)
    fixes = []
    if one <= room < together * one:
        fixes.append(f"set placement.generation_batch to at most {int(room // one)} (changes no result's definition)")
    elif room < one and sum(states.values()) < available:
        fixes.append("whole weights do not fit beside the states while it generates: take more devices, or lora.rank")
    return drawing, fixes


def _beside_vllm(
    config: Config, shape: ModelShape, available: float, states: dict[str, float]
) -> tuple[dict[str, float], list[str]]:
    """vLLM's fixed share of the device, which must hold its own weights and some cache."""
    share = config.placement.vllm.colocated_memory
    weights = _element(config) * shape.parameters
    least = (weights + 16 * _sequence_bytes(config, shape, config.explore.max_completion_tokens)) / available
    most = 1 - sum(states.values()) / available
    fixes = []
    if not least <= share <= most:
        if least <= most:
            fixes.append(f"set placement.vllm.colocated_memory to between {least:.2f} and {most:.2f}")
        else:
            fixes.append("vLLM's own weights do not fit beside the states: share the states among more devices")
    return {"vLLM": max(share, least) * available}, fixes


def _rft(config: Config, shape: ModelShape, available: float, devices: int, way: Sharding) -> StageMemory:
    states = training_states(config, shape, way, devices)
    micro = config.placement.micro_batch_trajectories or config.rft.batch_trajectories // devices or 1
    fixes = _pass_fixes(config, shape, available, devices, states, micro, "placement.micro_batch_trajectories")
    return StageMemory("rft", {**states, **activation_bytes(config, shape, micro)}, available, tuple(fixes))


def _evaluate(config: Config, shape: ModelShape, available: float) -> StageMemory:
    """Of one engine on one device; with vLLM's tensor parallelism, its part of weights and cache."""
    weights = float(shape.parameters * _element(config))
    one = _sequence_bytes(config, shape, config.longest_evaluation)
    if uses_vllm(config, "evaluate"):
        width = config.placement.vllm.tensor_parallel
        least = (weights + one) / width
        enough = next((n for n in (2, 4, 8) if n > width and (weights + one) / n <= available), 0)
        fix = f"set placement.vllm.tensor_parallel to {enough}" if enough else "take larger devices"
        share = config.placement.vllm.memory * available
        return StageMemory("evaluate", {"vLLM": max(share, least)}, available, (fix,) if least > available else ())
    room = available - weights
    fixes: list[str] = []
    if room < one:
        fixes.append("the weights alone fill the device: set policy.dtype to bfloat16, or take a larger device")
    batch = config.placement.generation_batch
    if one <= room < batch * one:
        fixes.append(f"set placement.generation_batch to at most {int(room // one)}")
    return StageMemory("evaluate", {"weights": weights, "key-value cache": float(batch * one)}, available, tuple(fixes))


def _pass_fixes(
    config: Config,
    shape: ModelShape,
    available: float,
    devices: int,
    states: dict[str, float],
    micro: int,
    setting: str,
) -> list[str]:
    """What makes a forward-backward pass fit beside the states."""
    room = available - sum(states.values())
    smallest = activation_bytes(config, shape, 1)
    if room < sum(smallest.values()):
        return _state_fixes(config, shape, available, devices, states)
    if sum(activation_bytes(config, shape, micro).values()) > room:
        whole = config.explore.mini_batch_rollouts if setting.endswith("rollouts") else config.rft.batch_trajectories
        share = max(1, whole // devices)
        fitting = [
            count
            for count in range(1, share + 1)
            if share % count == 0 and sum(activation_bytes(config, shape, count).values()) <= room
        ]
        return [f"set {setting} to {max(fitting)} (changes no result's definition)"]
    return []


def _state_fixes(
    config: Config, shape: ModelShape, available: float, devices: int, states: dict[str, float]
) -> list[str]:
    """What makes the states fit: other ways to share them out, each tried; adapters; more devices."""
    if not config.placement.gradient_checkpointing and sum(states.values()) < available:
        return ["set placement.gradient_checkpointing to true"]
    lean = _with_checkpointing(config)
    found = [
        f"set placement.accelerate_config to {way.file} ({way.name})"
        for way in ladder(devices)
        if way.file and _leaves_room(lean, shape, available, devices, way)
    ][:1]
    adapters = config.model_copy(update={"lora": config.lora.model_copy(update={"rank": 32})})
    if not config.lora.enabled and _leaves_room(_with_checkpointing(adapters), shape, available, devices, DDP):
        found.append("set lora.rank to 32 (adapters: another computation)")
    words = f"{sum(states.values()) / GIB:,.0f} GiB of weights, gradients and AdamW states"
    more = next((n for n in (2, 4, 8, 16, 32, 64) if n > devices and _leaves_room(lean, shape, available, n, ZERO3)), 0)
    if more:
        return [*found, f"{words}: share them among at least {more} devices (--gpus), or take a smaller policy"]
    return found or [f"{words} and a pass of one sequence: take larger devices, or a smaller policy"]


def _fits(config: Config, shape: ModelShape, available: float, devices: int, way: Sharding) -> bool:
    stages = (_explore, _rft)
    return all(stage(config, shape, available, devices, way).fits for stage in stages)


def _leaves_room(config: Config, shape: ModelShape, available: float, devices: int, way: Sharding) -> bool:
    """Whether a pass of one sequence fits beside the states, and the whole weights that generation needs."""
    states = sum(training_states(config, shape, way, devices).values())
    one_pass = sum(activation_bytes(config, shape, 1).values())
    drawing = _sequence_bytes(config, shape, config.explore.max_completion_tokens)
    drawing += _element(config) * shape.parameters if way.gathers or uses_vllm(config, "explore") else 0
    drawing = 0 if asks_server(config) else drawing
    return states + max(one_pass, drawing) <= available


def _with_checkpointing(config: Config) -> Config:
    placement = config.placement.model_copy(update={"gradient_checkpointing": True})
    return config.model_copy(update={"placement": placement})


def _sequence_bytes(config: Config, shape: ModelShape, completion: int) -> int:
    return (config.prompt.max_tokens + completion) * shape.kv_bytes_per_token(_element(config))


def _element(config: Config) -> int:
    return 2 if config.policy.dtype == "bfloat16" else 4
