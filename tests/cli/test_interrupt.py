from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import psutil
import pytest

from tests.processes import still_running

pytestmark = pytest.mark.process

# A flow whose engine, once interrupted, logs a lot and then waits for a server that is gone.
STUBBORN = """
import subprocess, sys, time
from rloop_core.cli import interrupt
interrupt.GRACE_SECONDS = 0.3
with interrupt.ending_promptly():
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        print("Traceback: noise", file=sys.stderr)
        time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stubborn_flow_ends_with_one_line_and_nothing_left_behind(number, code):
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=-1, stderr=-1, text=True) as process:
        child = psutil.Process(int(process.stdout.readline()))
        process.send_signal(number)
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == code
        assert stderr.startswith("rloop: interrupted") and stderr.count("\n") == 1
    assert not still_running([child])


def test_other_errors_pass_and_handlers_are_put_back():
    from rloop_core.cli.interrupt import ending_promptly

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="other"), ending_promptly():
        raise ValueError("other")
    assert signal.getsignal(signal.SIGINT) is before


# Two seconds of every Ctrl-C went by waiting for it: it ignores SIGTERM, and ends by itself when its starter has.
WITH_TRACKER = """
import psutil, subprocess
from multiprocessing import resource_tracker
from rloop_core.cli.interrupt import _end_children
resource_tracker.ensure_running()
tracker = resource_tracker._resource_tracker._pid
child = subprocess.Popen(["sleep", "60"])
_end_children()
print(tracker, psutil.Process(tracker).is_running(), psutil.pid_exists(child.pid))
"""


def test_the_resource_tracker_is_left_to_end_by_itself():
    done = subprocess.run([sys.executable, "-c", WITH_TRACKER], capture_output=True, text=True, check=True, timeout=60)
    tracker, ran, child_left = done.stdout.split()
    assert (ran, child_left) == ("True", "False")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(tracker)).wait(timeout=60)
    assert not psutil.pid_exists(int(tracker))
