"""A small server with the part of vLLM's HTTP protocol that TRL's client speaks; it draws with transformers' engine.

Weights, which a real one fetches by NCCL, come through a queue; which ones, and in what shapes, still comes by HTTP.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from rloop_core.rollout.engine import SamplingSettings
from rloop_core.rollout.policy import load_model, load_tokenizer
from rloop_core.rollout.sampler import TransformersSampler


def log_probs(model: Any, prompt: list[int], row: list[int], temperature: float = 1.0) -> list[float]:
    """log pi of each token of a row after its prompt."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + row])).logits[0, len(prompt) - 1 : -1] / temperature
    values: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(row)[:, None])[:, 0].tolist()
    return values


class PolicyServer:
    """Serves a policy of its own; tests change what it says and does."""

    def __init__(self, policy: Path) -> None:
        self.model = load_model(policy, dtype="float32", device="cpu")
        self.sampler = TransformersSampler(self.model, load_tokenizer(policy))
        self.info: dict[str, Any] = {
            "model_config": {"logprobs_mode": "processed_logprobs", "dtype": "torch.float32"},
            "weight_transfer_config": {"backend": "nccl"},
        }
        self.longest, self.version, self.root, self.url = 200, "0.29.0", "/models/policy", ""
        self.weights: queue.Queue[tuple[str, torch.Tensor]] = queue.Queue()
        """Where the trainer puts tensors."""
        self.updates = 0
        """Weight updates that were finished."""
        self.deaf, self.broken, self.dev_mode = False, False, True
        """Takes weights in and goes on with its old ones; refuses to sample; has the endpoints that take weights."""
        self.asked: list[dict[str, Any]] = []
        """Bodies of all requests for completions."""

    def get(self, path: str) -> Any:
        """The answer to a GET; None is a 404."""
        answers = {
            "/health": "",
            "/version": {"version": self.version},
            "/v1/models": {"data": [{"id": "policy", "root": self.root, "max_model_len": self.longest}]},
            **(
                {"/server_info": {"vllm_config": self.info}, "/get_world_size": {"world_size": 1}}
                if self.dev_mode
                else {}
            ),
        }
        return answers.get(path.partition("?")[0])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a POST; None is a 500."""
        if path == "/v1/completions":
            return None if self.broken else {"choices": self._complete(body)}
        if path == "/update_weights":
            self._take(body["update_info"])
        self.updates += path == "/finish_weight_update"
        return {"success": True}

    def _take(self, info: dict[str, Any]) -> None:
        parameters = dict(self.model.named_parameters())
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            sent, weight = self.weights.get(timeout=60)
            assert (sent, list(weight.shape), f"torch.{dtype}") == (name, shape, str(weight.dtype))
            if not self.deaf:
                with torch.no_grad():
                    parameters.pop(name).copy_(weight)
        assert self.deaf or not parameters, "every weight came"

    def _complete(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        self.asked.append(body)
        prompts = [prompt for prompt in body["prompt"] for _ in range(body["n"])]
        settings = SamplingSettings(1, body["temperature"], body["top_p"], body["max_tokens"], len(prompts), 0)
        choices = []
        for prompt, row in zip(prompts, self.sampler.sample_ids(prompts, settings), strict=True):
            values = log_probs(self.model, prompt, row, body["temperature"])
            tokens = [f"token_id:{token}" for token in row]
            tops = [{token: value} for token, value in zip(tokens, values, strict=True)]
            said = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}
            choices.append({"prompt_token_ids": prompt, "token_ids": row, "logprobs": said})
        return choices


@contextmanager
def serving(policy: Path) -> Iterator[PolicyServer]:
    """A server on a free port of this machine, while the block runs."""
    state = PolicyServer(policy)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(state.get(self.path), 404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(state.post(self.path, json.loads(body or b"{}")), 500)

        def _answer(self, content: Any, without: int) -> None:
            data = b"" if content in (None, "") else json.dumps(content).encode()
            self.send_response(without if content is None else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
