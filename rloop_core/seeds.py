"""Seeds derived from the run's seed by purpose: independent, and the same on every machine."""

from rloop_core.store.canonical import fingerprint


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 31-bit seed for the purpose that `names` spell out."""
    return int(fingerprint({"seed": seed, "names": list(names)})[:8], 16) & 0x7FFFFFFF
