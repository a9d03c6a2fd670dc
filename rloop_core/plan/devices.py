"""Devices and what they do in a second; each constant with its origin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """An accelerator, or the CPU.

    Attributes:
        memory_gib: Usable memory of one.
        flops: Peak dense bf16 FLOP/s (makers' data sheets); for the CPU what training reaches.
        bandwidth: Memory bytes/s (data sheets).
    """

    name: str
    memory_gib: float
    flops: float
    bandwidth: float


DEVICES: dict[str, Device] = {
    "h100": Device("NVIDIA H100 SXM 80 GB", 79.0, 989e12, 3.35e12),
    "h200": Device("NVIDIA H200 141 GB", 139.0, 989e12, 4.8e12),
    "a100": Device("NVIDIA A100 SXM 80 GB", 79.0, 312e12, 2.0e12),
    "l40s": Device("NVIDIA L40S 48 GB", 44.0, 362e12, 0.864e12),
    "rtx4090": Device("NVIDIA RTX 4090 24 GB", 23.5, 165e12, 1.008e12),
    "cpu": Device("CPU, one core a stage", 0.0, 5e10, 2e10),
}

GPUS_A_MACHINE = 8
"""As the machines that `rloop plan` names have."""
TRAINING_EFFICIENCY = 0.35
"""Share of a GPU's peak that forward and backward reach. Assumed; 0.3 to 0.4 is usual."""
GENERATE_SECONDS_A_LAYER = 3.0e-3
"""One decoding step of transformers' `generate`, a layer, bound by the host: measured on one H200, a 0.5 B Qwen2 of 24
layers, batch 256, 3,560 tokens/s, so 72 ms a step."""
BANDWIDTH_EFFICIENCY = 0.6
"""Share of the memory bandwidth that decoding reaches. Assumed."""
CPU_GENERATE_PARAMETER_TOKENS = 7e9
"""Parameters x tokens a second of `generate` on a CPU core: measured 7,000 tokens/s with a policy of 1 M parameters."""
CPU_GENERATE_TOKENS = 16_000
"""Tokens a second that no policy exceeds on the CPU, however small: 256 x 64 tokens in about a second (measured)."""
VLLM_HOST_SECONDS_A_SEQUENCE = 3.6e-5
"""The host's share of a decoding step of vLLM, a sequence: measured on one H200 with vLLM 0.26, 512 sequences x 512
tokens, 28,900 tokens/s with a 7.6 B Qwen2 and 27,000 with one of 0.5 B, so about 18 ms a step of 512 for both."""
VLLM_EFFICIENCY = 0.5
"""Share of a GPU's peak that vLLM's decoding reaches at most. Assumed; the 7.6 B Qwen2 above reached 0.44."""
BYTES_A_TOKEN_STORED = 3.5
"""Parquet (zstd) bytes of one completion token: its id about 2, its text about 1.5. Estimated."""
