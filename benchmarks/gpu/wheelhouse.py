"""Pack what a GPU machine without network lacks, in small pieces: `python -m benchmarks.gpu.wheelhouse --help`.

pip resolves the requirements for the machine's Python; packages that the machine has stay away, and those that only
other models or GPUs need. The rest is unpacked, thinned, compressed and cut.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

REQUIREMENTS = """
vllm==0.26.0 torch==2.11.0 transformers>=5.20,<5.24 trl>=1.16,<1.17 accelerate>=1.15,<1.16 peft>=0.21,<0.22 hjson
datasets>=5.2,<6 prefect>=3.7.7,<3.8 fastapi<0.137 s3fs>=2026.9 pandas>=3.0,<4 polars>=2.0,<3 math-verify>=0.9,<0.10
""".split()  # noqa: SIM905
WITHOUT_WHEELS = ("deepspeed==0.19.8",)
"""Packages that are built here; DeepSpeed compiles its kernels where they run."""
OMITTED = """
nvidia-* cuda-* tilelang z3-solver torchcodec pynvvideocodec flashinfer-python humming-kernels quack-kernels
tokenspeed-* nvtx pyelftools sentry-sdk fastsafetensors asyncpg
""".split()  # noqa: SIM905
"""What torch brings itself, and what vLLM imports for other models, GPUs and services alone."""
THINNED = """
**/tests prefect/server/ui* mistral_common/data pycountry/locales vllm/vllm-rs vllm/third_party/fmha_sm100
vllm/third_party/deep_gemm/include vllm/_moe_C_* vllm/vllm_flash_attn/_vllm_fa2_C*
""".split()  # noqa: SIM905
"""Files that no run of Qwen2 on a Hopper GPU opens: tests, web pages, expert kernels, FlashAttention 2."""
_THERE = """\
there, with the pieces of all transfers in one folder:
  mkdir site; cat piece* | xz -dc -T0 | tar xf - -C site; python3 -m compileall -q -j 0 site
  PYTHONPATH=$PWD/site VLLM_USE_FLASHINFER_SAMPLER=0 make gpu-check PARTS="explore evaluate plan"
"""


def main() -> None:
    """Write the pieces and say how large they are."""
    options = _parser().parse_args()
    lines = filter(None, options.has.read_text().splitlines())
    has = {_normal(re.split(r"[=<> @\[]", line, maxsplit=1)[0]) for line in lines} - {*map(_normal, options.renew)}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        site = Path(folder) / "site"
        wanted = [pin for pin in resolve(options.python, options.requirement or REQUIREMENTS) if not _stays(pin, has)]
        install = [options.python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", site]
        subprocess.run([*install, "--only-binary=:all:", *wanted], check=True)
        if options.source:
            subprocess.run([*install, *options.source], check=True)
        for path in {path for pattern in THINNED for path in site.glob(pattern)}:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for earlier in options.out.glob("piece*"):
            earlier.unlink()
        start = shlex.quote(str(options.out / "piece"))
        pack = f"tar cf - -C {shlex.quote(str(site))} . | xz -6 -T0 | split -b {options.mib}M -d -a 2 - {start}"
        subprocess.run(["bash", "-o", "pipefail", "-c", pack], check=True)
    pieces = sorted(options.out.glob("piece*"))
    print(f"{len(wanted) + len(options.source)} packages in {len(pieces)} pieces:")
    print("".join(f"  {piece}  {piece.stat().st_size / 2**20:.1f} MiB\n" for piece in pieces) + f"\n{_THERE}", end="")


def resolve(python: str, requirements: Iterable[str]) -> list[str]:
    """Return the pins `name==version` of all packages that pip would install for a Python, downloading none of them."""
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--only-binary=:all:"]
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        subprocess.run([*command, "--report", report.name, *requirements], check=True)
        found = json.loads(Path(report.name).read_text())["install"]
    return [f"{_normal(item['metadata']['name'])}=={item['metadata']['version']}" for item in found]


def _stays(pin: str, has: set[str]) -> bool:
    name = pin.partition("==")[0]
    return name in has or any(Path(name).match(pattern) for pattern in OMITTED)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.wheelhouse",
        description=__doc__,
        epilog=_THERE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--has", type=Path, required=True, help="the machine's `pip list --format=freeze`; versions are not compared")
    add("--python", default=sys.executable, help="a Python of the machine's version, with pip [this one]")
    add("--renew", nargs="*", default=[], metavar="NAME", help="packages to carry although the machine has them")
    source = f"packages to build, for they have no wheels [{' '.join(WITHOUT_WHEELS)}]"
    add("--source", nargs="*", default=WITHOUT_WHEELS, metavar="NAME", help=source)
    add("--out", type=Path, default=Path(".rloop/wheelhouse"), help="folder of the pieces [.rloop/wheelhouse]")
    add("--mib", type=int, default=48, help="largest piece [48]")
    add("requirement", nargs="*", help=f"[{' '.join(REQUIREMENTS)}]")
    return parser


if __name__ == "__main__":
    main()
