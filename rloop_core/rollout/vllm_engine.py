"""Completions from a policy with vLLM, whose scheduler and weights live in a process of their own.

That process holds the device's memory: ending it is the one way to have all of it back, so every policy gets a new
one. All batches are handed over at once, and the scheduler keeps the device full across them; a batch is done when the
last of its sequences is. Data parallelism is not vLLM's: several machines or devices each draw a share of the batches.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config
from rloop_core.errors import StageCrashed, StageError
from rloop_core.printable import printable_line
from rloop_core.rollout.available import check_standalone
from rloop_core.rollout.engine import ENGINE_STARTS, Completion, SamplingSettings, batch_seed, plan_batches
from rloop_core.rollout.policy import declared_eos_ids
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CPU_BATCHED_TOKENS = 4096
_MEMORY_FIX = "lower placement.vllm.memory or placement.generation_batch, or free the device of other processes"


class VllmEngine:
    """See `RolloutEngine`. Each sequence has a seed of its own, derived from its batch's and its place in it.

    Args:
        config: The run's config.
        policy: Folder of the policy.
        device: "cpu" or "cuda".
        tokenizer: The policy's.

    Raises:
        ConfigError: vLLM is not installed.
        StageError: It does not start: not enough memory, or a model that it does not know.
    """

    def __init__(self, config: Config, policy: Path, device: str, tokenizer: PreTrainedTokenizerBase) -> None:
        check_standalone(config)
        _set_environment(config, device)
        self._tokenizer = tokenizer
        self._eos = declared_eos_ids(policy, tokenizer, trust_remote_code=config.policy.trust_remote_code)
        print(ENGINE_STARTS, file=sys.stderr, flush=True)
        self._engine = _start(config, policy, device)
        _tell_of_its_end(self._engine.engine_core)

    def sample(
        self, problems: Sequence[EncodedProblem], settings: SamplingSettings, batches: Collection[int] | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Batches as they are done; see `RolloutEngine`."""
        plan = {
            index: pairs
            for index, pairs in enumerate(plan_batches(problems, settings))
            if batches is None or index in batches
        }
        drawn: dict[int, dict[int, Any]] = {index: {} for index in plan}
        with _engine_errors():
            for index, pairs in plan.items():
                self._hand_over(index, [problems[which] for which, _ in pairs], settings)
        while drawn:
            with _engine_errors():
                outputs = self._engine.step()
            for output in outputs:
                if output.finished:
                    index, place = map(int, output.request_id.split("-")[:2])
                    drawn[index][place] = output.outputs[0]
                    if len(drawn[index]) == len(plan[index]):
                        yield index, self._completions(problems, plan[index], drawn.pop(index))

    def close(self) -> None:
        """End the engine's process."""
        self._engine.engine_core.shutdown()

    def _hand_over(self, batch: int, problems: list[EncodedProblem], settings: SamplingSettings) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        seed = batch_seed(settings, batch)
        for place, problem in enumerate(problems):
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
            prompt = {"prompt_token_ids": list(problem.prompt_ids)}
            self._engine.add_request(f"{batch}-{place}", prompt, parameters)

    def _completions(
        self, problems: Sequence[EncodedProblem], pairs: list[tuple[int, int]], drawn: dict[int, Any]
    ) -> list[Completion]:
        outputs = [drawn[place] for place in range(len(pairs))]
        rows = [list(output.token_ids) for output in outputs]
        texts = self._tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            Completion(
                problems[which], sample, row, text, bool(row) and row[-1] in self._eos, output.cumulative_logprob
            )
            for (which, sample), row, text, output in zip(pairs, rows, texts, outputs, strict=True)
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
            fix = f"see the stage's log, then start the same command again: it resumes; was memory short, {_MEMORY_FIX}"
            raise StageCrashed(what, field="placement.engine", fix=fix) from error
