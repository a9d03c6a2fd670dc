"""Checks of a vLLM server that samples exploration's rollouts, made before a phase begins.

TRL's client (`vllm_mode: server`) talks to it: completions by HTTP, weights by NCCL, the trainer as rank 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from rloop_core.config import Config
from rloop_core.errors import ConfigError, RLoopError, StageCrashed
from rloop_core.printable import printable_line
from rloop_core.rollout.available import engine_name, uses_vllm

FIELD = "placement.vllm.server"
LOGPROBS_MODE = "processed_logprobs"
_TIMEOUT_SECONDS = 20.0


def asks_server(config: Config) -> bool:
    """Return True if a server samples exploration's rollouts."""
    return uses_vllm(config, "explore") and config.placement.vllm.server is not None


def server_command(config: Config) -> str:
    """Return the shell command that serves the policy as exploration needs it.

    The server listens at the address in `placement.vllm.server` only, because it has no password.
    """
    host = urlsplit(config.placement.vllm.server or "").hostname
    length = config.prompt.max_tokens + config.explore.max_completion_tokens
    return (
        f"VLLM_SERVER_DEV_MODE=1 vllm serve {config.policy.path} --host {host} --dtype {config.policy.dtype} "
        f"--max-model-len {length} --logprobs-mode {LOGPROBS_MODE} --max-logprobs -1 --generation-config vllm "
        """--weight-transfer-config '{"backend": "nccl"}'"""
    )


def check_server(config: Config) -> None:
    """Check that the server at `placement.vllm.server` can sample for this run.

    Of another model only the hub id can be told; the content of a folder on the server cannot be checked.

    Raises:
        ConfigError: It does not answer, serves another model, or lacks an option of `server_command`.
    """
    url, command = (config.placement.vllm.server or "").rstrip("/"), server_command(config)
    _ask(command, url, "/health", message=f"no vLLM server is ready at {url}")
    served = _ask(command, url, "/v1/models")["data"][0]
    root, policy = str(served.get("root") or served["id"]), config.policy.path
    version, longest = str(_ask(command, url, "/version")["version"]), int(served["max_model_len"])
    info = _ask(command, url, "/server_info?config_format=json", "it keeps the endpoints that take weights shut")
    settings = info["vllm_config"]
    mode = settings["model_config"].get("logprobs_mode")
    dtype = str(settings["model_config"].get("dtype", "")).removeprefix("torch.")
    local = engine_name("vllm").removeprefix("vllm").strip()
    needed = config.prompt.max_tokens + config.explore.max_completion_tokens
    fix = f"start it so: {command}"
    if _is_hub_id(root) and _is_hub_id(policy) and root != policy:
        what = f"it serves {printable_line(root, 100)}, and the run's policy is {policy}"
        fix = "have it serve policy.path: it gets weights, no architecture"
    elif local and local.split(".")[:2] != version.split(".")[:2]:
        what = f"it runs vLLM {version}, and vLLM {local} is installed here, which may send weights otherwise"
        fix = "install one release on both machines"
    elif longest < needed:
        what = f"it takes {longest} tokens, prompt and completion need {needed}"
        fix = f"start it with --max-model-len {needed}"
    elif not settings.get("weight_transfer_config"):
        what = "it was started without a way to get weights"
    elif mode != LOGPROBS_MODE:
        what = f"its log-probabilities ({mode}) are not of the distribution that it samples from"
    elif dtype and dtype != config.policy.dtype:
        what = f"it computes in {dtype}, the policy is in {config.policy.dtype}"
        fix = f"start it with --dtype {config.policy.dtype}"
    else:
        return
    raise ConfigError(what, field=FIELD, fix=fix)


def keep_weights_here(config: Config) -> None:
    """Send weights over loopback if the server runs on this machine.

    vLLM opens a TCP store at this machine's address and unpickles what is written to it.
    """
    if urlsplit(config.placement.vllm.server or "").hostname in ("localhost", "127.0.0.1"):
        os.environ["VLLM_HOST_IP"] = "127.0.0.1"


@contextmanager
def server_errors(url: str | None) -> Iterator[None]:
    """Turn the errors of TRL's client, when the server is gone or refuses, into a crash of the stage."""
    try:
        yield
    except RLoopError:
        raise
    except Exception as error:
        # The client raises errors of requests, or a bare Exception with the answer in its message.
        if url is None or not (type(error) is Exception or type(error).__module__.startswith("requests")):
            raise
        message = f"the server at {url} gave no completions: {printable_line(str(error), 300)}"
        fix = "see its log, start it again, then the same command: it resumes at the last checkpoint"
        raise StageCrashed(message, field=FIELD, fix=fix) from error


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _ask(command: str, url: str, path: str, message: str = "it is no vLLM server") -> Any:
    """Return the server's answer as parsed JSON; None if it is empty."""
    try:
        with urlopen(f"{url}{path}", timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - http(s) alone, by the field's pattern
            content = answer.read(1 << 24)
        return json.loads(content) if content else None
    except HTTPError as error:
        reason = f"{path} answers {error.code}"
    except (URLError, OSError, ValueError) as error:
        reason = printable_line(str(getattr(error, "reason", None) or error), 200)
    raise ConfigError(f"{message} ({reason})", field=FIELD, fix=f"start it so: {command}")
