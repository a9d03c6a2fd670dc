"""A vLLM server that draws exploration's rollouts: whether it can, asked before a phase is begun.

TRL's client (`vllm_mode: server`) talks to it: completions over HTTP, weights by NCCL, the trainer as rank 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from rloop_core.config import Config
from rloop_core.errors import ConfigError, RLoopError, StageCrashed
from rloop_core.printable import printable_line
from rloop_core.rollout.available import engine_name

FIELD = "placement.vllm.server"
LOGPROBS_MODE = "processed_logprobs"
_SECONDS = 20.0


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
        version: vLLM's.
        model: What it serves; the weights become the trainer's.
        longest: Its longest sequence in tokens.
    """

    version: str
    model: str
    longest: int


def asks_server(config: Config) -> bool:
    """Whether a server draws exploration's rollouts."""
    return config.explore.engine == "vllm" and config.placement.vllm.server is not None


def server_command(config: Config) -> str:
    """The command, for a shell on the server's machine, that serves a policy as exploration needs it.

    It listens at the address that placement names and at no other: it has no password.
    """
    host = urlsplit(config.placement.vllm.server or "").hostname
    length = config.prompt.max_tokens + config.explore.max_completion_tokens
    return (
        f"VLLM_SERVER_DEV_MODE=1 vllm serve {config.policy.path} --host {host} --dtype {config.policy.dtype} "
        f"--max-model-len {length} --logprobs-mode {LOGPROBS_MODE} --max-logprobs -1 --generation-config vllm "
        """--weight-transfer-config '{"backend": "nccl"}'"""
    )


def check_server(config: Config) -> ServerFacts:
    """Ask the server that `placement.vllm.server` names whether it can draw for this run.

    Args:
        config: The run's config.

    Raises:
        ConfigError: It does not answer, serves another model, or was started otherwise than `server_command` says.
    """
    url = (config.placement.vllm.server or "").rstrip("/")
    _ask(config, url, "/health", what=f"no vLLM server is ready at {url}")
    served = _ask(config, url, "/v1/models")["data"][0]
    _check_model(config, served)
    facts = ServerFacts(str(_ask(config, url, "/version")["version"]), served["id"], int(served["max_model_len"]))
    own = engine_name("vllm").removeprefix("vllm").strip()
    if own and own.split(".")[:2] != facts.version.split(".")[:2]:
        what = f"it runs vLLM {facts.version}, and vLLM {own} is installed here; they exchange weights by one protocol"
        raise ConfigError(what, field=FIELD, fix="install one release on both machines")
    longest = config.prompt.max_tokens + config.explore.max_completion_tokens
    if facts.longest < longest:
        what = f"it takes {facts.longest} tokens, prompt and completion need {longest}"
        raise ConfigError(what, field=FIELD, fix=f"start it with --max-model-len {longest}")
    info = _ask(config, url, "/server_info?config_format=json", what="it keeps the endpoints that take weights shut")
    _check_settings(config, info["vllm_config"])
    return facts


def keep_weights_here(config: Config) -> None:
    """Have this process give weights to a server of its own machine over loopback.

    vLLM meets the server's GPUs in a TCP store at this machine's address, and unpickles what they find in it.
    """
    if urlsplit(config.placement.vllm.server or "").hostname in ("localhost", "127.0.0.1"):
        os.environ["VLLM_HOST_IP"] = "127.0.0.1"


@contextmanager
def server_errors(url: str | None) -> Iterator[None]:
    """Turns what TRL's client says of a server that is gone, or that refuses, into a crash of the stage."""
    try:
        yield
    except RLoopError:
        raise
    except Exception as error:
        # It raises requests' own errors, or a bare Exception with the answer in it.
        if url is None or not (type(error) is Exception or type(error).__module__.startswith("requests")):
            raise
        what = f"the server at {url} gave no completions: {printable_line(str(error), 300)}"
        fix = "see its log, start it again, then the same command: it resumes at the last checkpoint"
        raise StageCrashed(what, field=FIELD, fix=fix) from error


def _check_settings(config: Config, settings: dict[str, Any]) -> None:
    model = settings["model_config"]
    command = server_command(config)
    if not settings.get("weight_transfer_config"):
        raise ConfigError("it was started without a way to get weights", field=FIELD, fix=f"start it so: {command}")
    if (mode := model.get("logprobs_mode")) != LOGPROBS_MODE:
        what = f"its log-probabilities ({mode}) are not of the distribution that it draws from"
        raise ConfigError(what, field=FIELD, fix=f"start it so: {command}")
    dtype = str(model.get("dtype", "")).removeprefix("torch.")
    if dtype and dtype != config.policy.dtype:
        what = f"it computes in {dtype}, the policy is in {config.policy.dtype}"
        raise ConfigError(what, field=FIELD, fix=f"start it with --dtype {config.policy.dtype}")


def _check_model(config: Config, served: dict[str, Any]) -> None:
    """Both named by hub ids, the server's model must be the run's; what lies in its folders it does not say."""
    ids = [str(served.get("root") or served["id"]), config.policy.path]
    if all(_is_hub_id(one) for one in ids) and ids[0] != ids[1]:
        what = f"it serves {printable_line(ids[0], 100)}, and the run's policy is {ids[1]}"
        raise ConfigError(what, field=FIELD, fix="have it serve policy.path: it gets weights, no architecture")


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _ask(config: Config, url: str, path: str, what: str | None = None) -> Any:
    """A server's answer as JSON; None where that is empty."""
    try:
        with urlopen(f"{url}{path}", timeout=_SECONDS) as answer:  # noqa: S310 - http(s) alone, by the field's pattern
            content = answer.read(1 << 24)
        return json.loads(content) if content else None
    except HTTPError as error:
        reason = f"{path} answers {error.code}"
    except (URLError, OSError, ValueError) as error:
        reason = printable_line(str(getattr(error, "reason", None) or error), 200)
    raise ConfigError(
        f"{what or 'it is no vLLM server'} ({reason})", field=FIELD, fix=f"start it so: {server_command(config)}"
    )
