"""A wrong clock for a whole process tree: the C library's own functions, which every program asks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_CODE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <sys/time.h>
#include <time.h>
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = REAL(clock_gettime)(which, now);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) now->tv_sec += SKEW;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = REAL(gettimeofday)(now, zone);
    now->tv_sec += SKEW;
    return failed;
}
time_t time(time_t *now) {
    time_t found = REAL(time)(NULL) + SKEW;
    if (now) *now = found;
    return found;
}
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec kernels = {until->tv_sec - SKEW, until->tv_nsec};
    return REAL(sem_timedwait)(semaphore, &kernels);
}
"""


def skewed_clock(folder: Path, seconds: int) -> dict[str, str] | None:
    """The environment of programs whose clock is so many seconds fast; None where no C compiler can make it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_CODE)
    make = [compiler, "-shared", "-fPIC", f"-DSKEW=({seconds})", "-o", library, source, "-ldl"]
    subprocess.run(make, check=True, capture_output=True)
    return {"LD_PRELOAD": str(library)}
