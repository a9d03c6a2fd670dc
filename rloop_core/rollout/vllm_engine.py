"""Batches drawn with vLLM, whose scheduler and weights live in a process of their own below this one.

That process holds the device's memory: ending it is the one way to have all of it back, so every policy gets a new
one. Some batches are under way at a time, so that the scheduler keeps the device full across them; a batch is done when
the last of its sequences is. Data parallelism is not vLLM's: see `engine_processes`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config
from rloop_core.errors import RESUMES, StageCrashed, StageError
from rloop_core.printable import printable_line
from rloop_core.rollout.engine import Drawn, SamplingSettings
from rloop_core.rollout.policy import declared_eos_ids
from rloop_core.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CPU_BATCHED_TOKENS = 4096
_MEMORY_FIX = "lower placement.vllm.memory or placement.generation_batch, or free the device of other processes"


class VllmDrawer:
    """See `Drawer`. Each sequence has a seed of its own, derived from its batch's and its place in it.

    Args:
        config: The run's config.
        policy: Folder of the policy.
        device: "cpu" or "cuda".
        tokenizer: The policy's.

    Raises:
        StageError: It does not start: not enough memory, or a model that it does not know.
    """

    ahead = 3
    """It works on as many sequences at a time as a batch has; the others stand ready for those that end."""

    def __init__(self, config: Config, policy: Path, device: str, tokenizer: PreTrainedTokenizerBase) -> None:
        _set_environment(config, device)
        self._tokenizer = tokenizer
        self._eos = declared_eos_ids(policy, tokenizer, trust_remote_code=config.policy.trust_remote_code)
        self._engine = _start(config, policy, device)
        self._under_way: dict[int, list[Any]] = {}
        self.left = 0
        _tell_of_its_end(self._engine.engine_core)
        self._warm_up()

    def add(self, key: int, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seed: int) -> None:
        """Hand the batch to the scheduler."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._under_way[key] = [None] * len(prompts)
        self.left += len(prompts)
        with _engine_errors():
            for place, prompt in enumerate(prompts):
                parameters = SamplingParams(
                    temperature=settings.temperature,
                    top_p=settings.top_p,
                    max_tokens=settings.max_tokens,
                    seed=derive_seed(seed, "sequence", place),
                    stop_token_ids=self._eos,
                    logprobs=0,  # of the drawn token alone
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                self._engine.add_request(f"{key}-{place}", {"prompt_token_ids": list(prompt)}, parameters)

    def step(self, tick: Callable[[], None]) -> list[tuple[int, list[Drawn]]]:
        """One step of the scheduler; one that brings no token may wait for the next."""
        with _engine_errors():
            outputs = self._engine.step()
        tick()
        whole = []
        for output in outputs:
            if output.finished:
                key, place = map(int, output.request_id.split("-")[:2])
                self._under_way[key][place] = output.outputs[0]
                self.left -= 1
                if None not in self._under_way[key]:
                    whole.append((key, self._drawn(self._under_way.pop(key))))
        return whole

    def close(self) -> None:
        """End the engine's process."""
        self._engine.engine_core.shutdown()

    def _warm_up(self) -> None:
        """Draw something, so that whoever is told that it is ready need not wait for kernels to be made."""
        settings = SamplingSettings(samples=1, temperature=1.0, top_p=1.0, max_tokens=2, batch=1, seed=0)
        self.add(0, [[self._eos[0]]], settings, seed=0)
        while self.left:
            self.step(lambda: None)

    def _drawn(self, outputs: list[Any]) -> list[Drawn]:
        rows = [list(output.token_ids) for output in outputs]
        texts = self._tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            Drawn(row, text, bool(row) and row[-1] in self._eos, output.cumulative_logprob)
            for row, text, output in zip(rows, texts, outputs, strict=True)
        ]


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


def _start(config: Config, policy: Path, device: str) -> Any:
    from vllm import EngineArgs, LLMEngine

    placement = config.placement
    arguments = EngineArgs(
        model=str(policy),
        skip_tokenizer_init=True,  # prompts and completions are token ids
        load_format="safetensors",
        dtype=config.policy.dtype,
        seed=0,  # sequences have seeds of their own
        trust_remote_code=config.policy.trust_remote_code,
        generation_config="vllm",  # none of the model's own sampling settings
        max_model_len=_longest(config),
        max_num_seqs=placement.generation_batch,
        gpu_memory_utilization=placement.vllm.memory,
        tensor_parallel_size=placement.vllm.tensor_parallel,
        logprobs_mode="processed_logprobs",  # as drawn
        disable_log_stats=True,
        **(_on_cpu(config) if device == "cpu" else {}),
    )
    try:
        return LLMEngine.from_engine_args(arguments)
    except Exception as error:
        what = f"vLLM did not start: {printable_line(str(error), 300)}"
        raise StageError(what, field="placement.engine", fix=f"see the stage's log; {_MEMORY_FIX}") from error


def _longest(config: Config) -> int:
    return config.prompt.max_tokens + max(config.explore.max_completion_tokens, config.longest_evaluation)


def _on_cpu(config: Config) -> dict[str, Any]:
    """Prompts are read whole: of one in parts, vLLM turns its sequence's generator back, which a CPU's cannot do."""
    return {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(_CPU_BATCHED_TOKENS, _longest(config)),
    }


def _tell_of_its_end(client: Any) -> None:
    """Let whoever waits for an answer know when the engine's process is gone.

    vLLM 0.29 notices a process that was killed, but `step` goes on waiting for what that would have sent.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    sentinels = [process.sentinel for process in client.resources.engine_manager.processes]
    answers = client.outputs_queue

    def watch() -> None:
        wait(sentinels)
        answers.put_nowait(EngineDeadError())

    threading.Thread(target=watch, name="rloop-vllm-watch", daemon=True).start()


class _engine_errors:  # noqa: N801 - used as a statement
    """Turns the loss of the engine's process into a crash of the stage, which is started again."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            what = "vLLM's engine process ended without an answer"
            fix = f"see the stage's log, then {RESUMES}; was memory short, {_MEMORY_FIX}"
            raise StageCrashed(what, field="placement.engine", fix=fix) from error
