"""Placement: where and how a run is computed. No field here is part of any fingerprint."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rloop_core.config.base import Impossible, Section
from rloop_core.config.engines import Engine, VllmConfig
from rloop_core.store.uri import CREDENTIALS, FIX, holds_credentials

Count = Annotated[int, Field(gt=0)]
StageName = Literal["explore", "harvest", "filter", "rft", "evaluate"]
StoreUri = Annotated[str, Field(json_schema_extra={"not": {"type": "string", "pattern": f"^{CREDENTIALS}"}})]
"""What a form takes: a server shows to everybody whatever it has once taken, so it must refuse credentials itself."""
PoolName = Annotated[str, Field(pattern=r"^[^/%&><]+$")]


class PlacementConfig(Section):
    """Store, device, batch sizes and patience. Changing any of these reruns nothing."""

    store: StoreUri = ".rloop/store"
    """Object store: a path or any fsspec URI (`file://`, `s3://bucket/prefix`), without credentials."""
    store_patience_seconds: Annotated[float, Field(ge=0)] = 180.0
    """Go on asking a remote store that does not answer, or is overloaded, for so long before a stage fails."""
    scratch: str | None = None
    """Local folder for unfinished work; null = `.scratch` in a local store, else `.rloop/scratch`."""
    cache_gb: Annotated[float, Field(gt=0)] | None = 50.0
    """GB (10^9 bytes) that copies of a remote store's files may take in `<scratch>/cache`; null = no limit.

    The least recently used go first; what a stage of this machine uses stays, even beyond the limit."""
    adopt: tuple[str, ...] = ()
    """Runs of the same store whose artifacts are taken over where the fingerprint is the same, instead of computed."""
    pools: dict[StageName, PoolName] = Field(default_factory=dict)
    """Stages that another Prefect work pool than the run's own computes, such as `{filter: rloop-cpu}`.

    The others are computed where the run is. A pool needs the deployment `rloop-stage/<pool>`, and the same store."""
    concurrency_limit: Annotated[str, Field(pattern=r"^[^/%&<>]+$")] | None = None
    """A Prefect concurrency limit of which every stage that trains or samples holds a slot.

    Null = `rloop-gpu` on a GPU, none on a CPU. `rloop deploy` makes that one, switched off."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the heavy stages compute."""
    processes: Count = 1
    """Processes (on GPUs: one each) of the stages that train, explore and rft, on all machines together; harvest and
    evaluate have `engines`.

    Equal up to the order of floating-point sums, and exploration draws other completions of the same problems."""
    machines: Count = 1
    """Machines of a Ray cluster (rloop[cluster]) that share the processes out, equally many each, and the batches of
    harvest and evaluate: the run's own, and others that `ray start` lends.

    They share `scratch`, under the same path on all of them. How ranks are spread over machines changes no digest."""
    machines_patience_minutes: Annotated[float, Field(ge=0)] = 10.0
    """Wait so long for the other machines, before the run and when one was lost."""
    accelerate_config: str | None = None
    """Config file of `accelerate launch`, as in infra/accelerate, for several processes or for one that keeps states in
    the host's memory; null = torchrun and plain DDP for several."""
    threads: Count | None = 1
    """CPU threads of each heavy stage. Keep it when comparing digests: it orders floating-point sums."""
    micro_batch_rollouts: Count | None = None
    """Rollouts in one forward-backward pass a device; null = the whole mini-batch."""
    micro_batch_trajectories: Count | None = None
    """Trajectories in one forward-backward pass of RFT; null = the whole batch."""
    engine: Engine = "transformers"
    """Who draws completions in harvest and evaluate: `transformers`, or `vllm` (rloop[vllm]) in processes of its own.

    Both draw from the same policy with seeds derived alike, but not the same completions, as two kinds of device do;
    so, as for device, what is finished stays valid. In exploration the engine is `explore.engine`: there it changes
    what an update computes."""
    engines: Count | None = None
    """Replicas of vLLM that share the batches of harvest and evaluate, each with GPUs of its own.

    Null = one for every `vllm.tensor_parallel` visible GPUs; on a CPU, one. A batch is drawn alike whoever draws it.
    transformers draws on one device."""
    engine_stall_minutes: Annotated[float, Field(gt=0)] | None = 10.0
    """End vLLM when a replica draws nothing for so long once it has started, and its stage; null waits for ever."""
    engine_start_minutes: Annotated[float, Field(gt=0)] | None = 60.0
    """End vLLM when it is not ready after so long, and its stage; it may compile for minutes."""
    vllm: VllmConfig = VllmConfig()
    """How much of a device vLLM takes, and when its drift from the trainer is alarming."""
    generation_batch: Count = 256
    """Sequences that are generated together; bounds the KV cache."""
    gradient_checkpointing: bool = False
    """Trade compute for activation memory."""
    liger_kernels: bool = False
    """Train with the fused norms, rotary embeddings and MLPs of liger-kernel (GPUs only); equal up to rounding."""
    checkpoint_every: Count = 5
    """RL steps between resumable checkpoints."""
    parallel_evaluation: bool = True
    """Evaluate theta_{i+1} while iteration i+1 explores, where a second worker is free; not on the same GPUs."""
    stage_timeout_minutes: Annotated[float, Field(gt=0)] | None = None
    """End a stage (its whole process tree) that runs longer."""
    stage_stall_minutes: Annotated[float, Field(gt=0)] | None = 120.0
    """End a stage without progress (an RL step, a batch) for so long, and start it again; null waits for ever."""
    collective_timeout_minutes: Annotated[float, Field(gt=0)] = 30.0
    """Of several processes, none waits longer for the others within one exchange; then the stage ends likewise. Longer
    than any process may be busy alone, drawing completions for instance."""
    stage_retries: Annotated[int, Field(ge=0)] = 1
    """Times a crashed stage is started again before the run gives up."""
    verifier_workers: Count = 1
    """Killable verifier processes a stage."""
    verifier_timeout_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Patience with one answer; then its verdict is `timeout`."""
    verifier_memory_mb: Count = 1024
    """Address space of one verifier process."""
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """Experiment trackers that explore and rft log to, each stage of an iteration as a run of its own."""
    tracker_folder: str = ".rloop/trackers"
    """Local folder of what trackers write: event files, databases, runs that were not sent yet."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What the console shows."""

    @property
    def cache_bytes(self) -> int | None:
        """`cache_gb` in bytes."""
        return None if self.cache_gb is None else int(self.cache_gb * 1e9)

    @property
    def drawing(self) -> str:
        """Name of what else decides which completions a seed gives: batches of two such names must not be mixed."""
        return f"{self.engine}-{self.generation_batch}"

    @model_validator(mode="after")
    def _holds_no_credentials(self) -> PlacementConfig:
        if holds_credentials(self.store):
            raise Impossible("store", "credentials do not belong into a store's URI", FIX)
        return self

    @model_validator(mode="after")
    def _replicas_are_of_vllm(self) -> PlacementConfig:
        if (self.engines or 1) > 1 and self.engine != "vllm":
            raise Impossible("engines", f"{self.engine} draws with one engine", "set engine to vllm, or leave it out")
        return self
