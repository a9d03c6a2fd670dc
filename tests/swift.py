"""A real S3 server for tests: OpenStack Swift with its s3api, one node on loopback, its data on disk.

It takes requests of clients whose clock is up to two hours off (AWS: a quarter of one), to show what rloop does then.
It comes from the package index into a virtual environment of its own below `.rloop/`, made once a clone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from rloop_core.runtime.lifetime import die_with_parent

ROOT = Path(__file__).parent.parent
REQUIREMENTS = Path(__file__).with_name("swift-requirements.txt")
BUCKET = "rloop"
_KEY, _SECRET = "loop:tester", "not-a-secret"
_STORAGE = ("account", "container", "object")

_RINGS = """
import sys
from swift.common.ring import RingBuilder
folder, *ports = sys.argv[1:]
for name, port in zip(("account", "container", "object"), ports):
    builder = RingBuilder(2, 1, 0)
    here = {"ip": "127.0.0.1", "port": int(port)}
    here |= {f"replication_{key}": value for key, value in here.items()}
    builder.add_dev({"region": 1, "zone": 1, "device": "disk", "weight": 1.0, "meta": "", **here})
    builder.rebalance()
    builder.get_ring().save(f"{folder}/{name}.ring.gz")
"""
_COMMON = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
fallocate_reserve = 0
workers = 0
log_level = ERROR
log_address = {folder}/no-system-log
"""
_APP = "[pipeline:main]\npipeline = {pipeline}\n[app:{name}-server]\nuse = egg:swift#{name}\n"
_FILTERS = {
    "catch_errors": "", "gatekeeper": "", "healthcheck": "", "proxy_logging": "", "listing_formats": "",
    "s3api": "allowable_clock_skew = 7200", "tempauth": "user_{user} = {secret} .admin", "bulk": "", "slo": "",
}  # fmt: skip
"""Filters of the proxy, in order, and their settings."""


class Swift:
    """A server that can be stopped and started again, on the same port and data.

    Attributes:
        environment: What a client needs to find it and to be let in.
        uri: Of a bucket that exists.
    """

    uri = f"s3://{BUCKET}"

    def __init__(self, folder: Path, key: str, secret: str) -> None:
        self._folder, self._python = folder, _environment()
        self._ports = dict(zip((*_STORAGE, "proxy"), _free_ports(4), strict=True))
        self._running: list[subprocess.Popen[bytes]] = []
        # A child that dies with its parent dies with the *thread* that started it: this one lives as long as we do.
        self._starter = ThreadPoolExecutor(1)
        self.host, self.port = "127.0.0.1", self._ports["proxy"]
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": self.host,
            "no_proxy": self.host,
        }
        self._configure(key, secret)

    def start(self) -> None:
        """Start it where it is not running, and wait until it answers."""
        assert not self._running, "it runs already"
        self._running = self._starter.submit(self._started).result()
        deadline = time.monotonic() + 60
        for port in self._ports.values():
            while True:
                assert time.monotonic() < deadline and all(one.poll() is None for one in self._running), self.log()
                try:
                    socket.create_connection((self.host, port), 5).close()
                    break
                except OSError:
                    time.sleep(0.05)

    def stop(self) -> None:
        """End it at once, as a power cut would; what it has answered stays."""
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
        self._running = []

    def log(self) -> str:
        """What its processes complained about."""
        return "".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("*.log")))

    def _started(self) -> list[subprocess.Popen[bytes]]:
        processes = []
        for name in self._ports:
            with open(self._folder / f"{name}.log", "ab") as log:
                command = [self._python.with_name(f"swift-{name}-server"), self._folder / f"{name}.conf", "-v"]
                process = subprocess.Popen(
                    command, env={"PYTHONWARNINGS": "ignore", "PATH": os.environ.get("PATH", "")},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
                )  # fmt: skip
                processes.append(process)
        return processes

    def _configure(self, key: str, secret: str) -> None:
        (self._folder / "devices" / "disk").mkdir(parents=True)
        rings = [self._python, "-c", _RINGS, self._folder, *(str(self._ports[name]) for name in _STORAGE)]
        subprocess.run(rings, check=True, capture_output=True)
        (self._folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = rloop\n")
        user = pwd.getpwuid(os.geteuid()).pw_name
        for name, port in self._ports.items():
            filters = _FILTERS if name == "proxy" else {}
            content = _COMMON.format(port=port, folder=self._folder, user=user)
            content += _APP.format(pipeline=" ".join([*filters, f"{name}-server"]), name=name)
            content += "account_autocreate = true\n" if name == "proxy" else ""
            for one, setting in filters.items():
                content += f"[filter:{one}]\nuse = egg:swift#{one}\n"
                content += setting.format(user=key.replace(":", "_"), secret=secret) + "\n"
            (self._folder / f"{name}.conf").write_text(content)


@contextmanager
def swift_server(folder: Path, key: str = _KEY, secret: str = _SECRET) -> Iterator[Swift]:
    """Start one with its data in a folder; gone when the block ends, and with this process if that is killed.

    Args:
        folder: Empty.
        key: The access key that it lets in, `ACCOUNT:USER`.
        secret: Belongs to it.

    Skips the test where there is no package index to install it from, or the disk cannot hold what it writes.
    """
    import boto3

    _need_attributes(folder)
    server = Swift(folder, key, secret)
    server.start()
    try:
        client = boto3.client(
            "s3", endpoint_url=server.environment["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id=key, aws_secret_access_key=secret,
        )  # fmt: skip
        client.create_bucket(Bucket=BUCKET)
        yield server
    finally:
        server.stop()


def _environment() -> Path:
    """The Python of the server's virtual environment, made now where there is none."""
    sums = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    folder = ROOT / ".rloop" / f"swift-{sums[:12]}"
    folder.parent.mkdir(exist_ok=True)
    python, whole = folder / "bin" / "python", folder / "installed"
    with open(f"{folder}.lock", "w") as lock:  # another test process may be at it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True)
            install = [python, "-m", "pip", "install", "--quiet", "--retries", "1", "-r", REQUIREMENTS]
            done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode and "No matching distribution" in done.stderr:
                pytest.skip("no package index to install the S3 server from")
            assert done.returncode == 0, done.stderr
            whole.touch()
    return python


def _need_attributes(folder: Path) -> None:
    """Skip the test where files cannot have extended attributes, in which the server keeps its metadata."""
    probe = folder / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.swift.metadata", b"x" * 1000)
    except OSError as error:
        pytest.skip(f"the S3 server cannot keep its metadata on this disk: {error.strerror}")
    finally:
        probe.unlink()


def _free_ports(number: int) -> list[int]:
    """Ports below those that the system hands out by itself: while the server is stopped nobody is given one."""
    found: list[int] = []
    while len(found) < number:
        port = random.SystemRandom().randrange(20_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.extend({port} - set(found))
    return found
