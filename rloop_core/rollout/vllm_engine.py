"""Batches drawn with vLLM: its replicas, one for each device or group of devices, share them.

vLLM's own data parallelism starts the replicas, each a process with a scheduler and weights of its own, and carries
requests to them. Those processes hold the device's memory: ending them is the one way to have all of it back, so every
policy gets new ones. Some batches are under way at a time, so that a scheduler keeps its device full across them; a
batch is done when the last of its sequences is, and draws the same on whichever replica.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config
from rloop_core.errors import RESUMES, StageCrashed, StageError
from rloop_core.printable import printable_line
from rloop_core.rollout.available import check_standalone, replicas_of
from rloop_core.rollout.engine import (
    ENGINE_STARTS,
    Completion,
    Drawn,
    SamplingSettings,
    batch_seed,
    completions_of,
    plan_batches,
)
from rloop_core.rollout.policy import declared_eos_ids
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.runtime.lifetime import kill, processes_below
from rloop_core.runtime.orphans import watch_descendants
from rloop_core.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIELD = "placement.engine"
_AHEAD = 3
"""Batches that a replica has: it works on as many sequences at a time as one has, the others stand ready."""
_TOKENS_A_SIGN = 64
"""A sequence shows after so many tokens that its replica draws."""
_LOOK_SECONDS = 1.0
_CPU_BATCHED_TOKENS = 4096
_MEMORY_FIX = "lower placement.vllm.memory or placement.generation_batch, or free the device of other processes"
_AGAIN = "start the same command again: it goes on after the batches that are done"


@dataclass
class _Replica:
    """What one replica is at.

    Attributes:
        number: Counted from 0.
        left: Sequences that it was given and has not drawn yet.
        heard: When it last showed that it draws, or was given something to draw while it had nothing.
    """

    number: int
    left: int = 0
    heard: float = field(default_factory=time.monotonic)


class VllmEngine:
    """See `RolloutEngine`. Each sequence has a seed of its own, derived from its batch's and its place in it.

    Args:
        config: The run's config.
        policy: Folder of the policy.
        device: "cpu" or "cuda".
        tokenizer: The policy's.

    Raises:
        ConfigError: vLLM is not installed, or more devices are asked for than there are.
        StageError: It does not start: not enough memory, or a model that it does not know.
        StageCrashed: It takes longer to start than placement allows.
    """

    def __init__(self, config: Config, policy: Path, device: str, tokenizer: PreTrainedTokenizerBase) -> None:
        check_standalone(config)
        self._patience = config.placement.engine_stall_minutes
        self._replicas = [_Replica(number) for number in range(replicas_of(config, device))]
        _set_environment(config, device)
        self._tokenizer = tokenizer
        self._eos = declared_eos_ids(policy, tokenizer, trust_remote_code=config.policy.trust_remote_code)
        self._requests = 0
        self._llm: Any = None
        self._others = set(multiprocessing.active_children())
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rloop-vllm", daemon=True).start()
        self._watcher = watch_descendants()
        print(ENGINE_STARTS, file=sys.stderr, flush=True)
        patience = config.placement.engine_start_minutes
        try:
            self._in_loop(self._start(_arguments(config, policy, device, len(self._replicas)))).result(
                patience and patience * 60
            )
        except TimeoutError as error:
            self.close()
            what = f"vLLM hangs: not ready after {patience:g} min (placement.engine_start_minutes)"
            raise StageCrashed(what, field=FIELD, fix=_AGAIN) from error
        except BaseException:
            self.close()
            raise

    def sample(
        self, problems: Sequence[EncodedProblem], settings: SamplingSettings, batches: Collection[int] | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Batches as they are done; see `RolloutEngine`.

        Raises:
            StageCrashed: A replica ended, or draws nothing any more.
        """
        plan = plan_batches(problems, settings)
        waiting = deque(index for index in range(len(plan)) if batches is None or index in batches)
        under_way: dict[Future[list[Any]], int] = {}
        try:
            while waiting or under_way:
                while waiting and (replica := self._least_busy(settings.batch)):
                    index = waiting.popleft()
                    prompts = [problems[which].prompt_ids for which, _ in plan[index]]
                    under_way[self._hand_over(replica, prompts, settings, batch_seed(settings, index))] = index
                for done in wait(under_way, _LOOK_SECONDS, FIRST_COMPLETED).done:
                    index = under_way.pop(done)
                    yield index, completions_of(problems, plan[index], self._drawn(done.result()))
                self._check_patience()
        finally:
            for rest in under_way:
                rest.cancel()

    def close(self) -> None:
        """End vLLM's processes; kills those that do not end by themselves."""
        if self._llm:
            self._llm.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for process in set(multiprocessing.active_children()) - self._others:
            if process.pid:
                kill(processes_below(process.pid))
            process.kill()
            process.join()
        self._watcher.kill()
        self._watcher.wait()

    async def _start(self, arguments: dict[str, Any]) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        except Exception as error:
            what = f"vLLM did not start: {printable_line(str(error), 300)}"
            raise StageError(what, field=FIELD, fix=f"see the stage's log; {_MEMORY_FIX}") from error

    def _in_loop(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _least_busy(self, batch: int) -> _Replica | None:
        """The replica with the least left to draw; None when that is enough for now."""
        replica = min(self._replicas, key=lambda one: one.left)
        return replica if replica.left <= (_AHEAD - 1) * batch else None

    def _hand_over(
        self, replica: _Replica, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seed: int
    ) -> Future[list[Any]]:
        if not replica.left:
            replica.heard = time.monotonic()
        replica.left += len(prompts)
        return self._in_loop(self._draw_batch(replica, prompts, settings, seed))

    async def _draw_batch(
        self, replica: _Replica, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seed: int
    ) -> list[Any]:
        drawing = [
            self._draw(replica, prompt, settings, derive_seed(seed, "sequence", place))
            for place, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*drawing)

    async def _draw(self, replica: _Replica, prompt: Sequence[int], settings: SamplingSettings, seed: int) -> Any:
        """(ids, sum of their log-probabilities) of one completion."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        parameters = SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            seed=seed,
            stop_token_ids=self._eos,
            logprobs=0,  # of the drawn token alone
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._requests += 1
        ids: list[int] = []
        try:
            async for output in self._llm.generate(
                {"prompt_token_ids": list(prompt)},
                parameters,
                str(self._requests),
                data_parallel_rank=replica.number,
            ):
                replica.heard = time.monotonic()
                ids += output.outputs[0].token_ids
        except EngineDeadError as error:
            what = "vLLM's engine process ended without an answer"
            fix = f"see the stage's log, then {RESUMES}; was memory short, {_MEMORY_FIX}"
            raise StageCrashed(what, field=FIELD, fix=fix) from error
        finally:
            replica.left -= 1
        return ids, output.outputs[0].cumulative_logprob

    def _drawn(self, rows: list[tuple[list[int], float]]) -> list[Drawn]:
        texts = self._tokenizer.batch_decode([ids for ids, _ in rows], skip_special_tokens=True)
        return [
            Drawn(ids, text, bool(ids) and ids[-1] in self._eos, log_prob)
            for (ids, log_prob), text in zip(rows, texts, strict=True)
        ]

    def _check_patience(self) -> None:
        for replica in self._replicas:
            quiet = time.monotonic() - replica.heard
            if self._patience and replica.left and quiet > self._patience * 60:
                several = f"replica {replica.number + 1} of {len(self._replicas)}"
                what = f"vLLM ({several}) hangs: it drew nothing for {self._patience:g} min"
                fix = f"{_AGAIN}; if it hangs again, look at its GPU (nvidia-smi)"
                raise StageCrashed(f"{what} (placement.engine_stall_minutes)", field=FIELD, fix=fix)


def _set_environment(config: Config, device: str) -> None:
    """What vLLM takes from its environment alone; whatever the user has set there stays."""
    chosen = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may hang
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for `--json`
        "VLLM_NO_USAGE_STATS": "1",
    }
    if device == "cpu":
        chosen["VLLM_CPU_KVCACHE_SPACE"] = str(config.placement.vllm.cpu_cache_gb)
        chosen["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if config.placement.threads:
            chosen["OMP_NUM_THREADS"] = str(config.placement.threads)
    for name, value in chosen.items():
        os.environ.setdefault(name, value)


def _arguments(config: Config, policy: Path, device: str, replicas: int) -> dict[str, Any]:
    placement = config.placement
    return {
        "model": str(policy),
        "skip_tokenizer_init": True,  # prompts and completions are token ids
        "load_format": "safetensors",
        "dtype": config.policy.dtype,
        "seed": 0,  # sequences have seeds of their own
        "trust_remote_code": config.policy.trust_remote_code,
        "generation_config": "vllm",  # none of the model's own sampling settings
        "max_model_len": _longest(config),
        "max_num_seqs": placement.generation_batch,
        "gpu_memory_utilization": placement.vllm.memory,
        "tensor_parallel_size": placement.vllm.tensor_parallel,
        "data_parallel_size": replicas,
        # In a Ray actor vLLM would ask Ray for the GPUs that the actor holds.
        "distributed_executor_backend": "mp" if placement.vllm.tensor_parallel > 1 else None,
        "logprobs_mode": "processed_logprobs",  # as drawn
        "stream_interval": _TOKENS_A_SIGN,
        "disable_log_stats": True,
        **(_on_cpu(config) if device == "cpu" else {}),
    }


def _longest(config: Config) -> int:
    return config.prompt.max_tokens + max(config.explore.max_completion_tokens, config.longest_evaluation)


def _on_cpu(config: Config) -> dict[str, Any]:
    """Prompts are read whole: of one in parts, vLLM turns its sequence's generator back, which a CPU's cannot do."""
    return {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(_CPU_BATCHED_TOKENS, _longest(config)),
    }
