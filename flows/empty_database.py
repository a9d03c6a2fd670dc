"""Prefect's database as it is before any run, kept from one embedded start to the next.

Making it anew takes some 5 seconds of migrations, which an emptied or fresh Prefect home would cost every command.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from importlib.metadata import version
from pathlib import Path

_CONNECTION = "PREFECT_API_DATABASE_CONNECTION_URL"


class EmptyDatabase:
    """The migrated, empty database of one Prefect version.

    Args:
        home: Prefect's home, where the database in use is.
    """

    def __init__(self, home: Path) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._kept = cache / "rloop" / f"prefect-{version('prefect')}.db"
        self._used = home / "prefect.db"
        self._fresh = not self._used.exists() and _CONNECTION not in os.environ

    def put(self) -> None:
        """Lay the kept database into a home that has none."""
        if self._fresh and self._kept.is_file():
            with contextlib.suppress(OSError):
                shutil.copyfile(self._kept, self._used)
                self._fresh = False

    def is_current(self) -> bool:
        """Whether a server of this version has prepared the database in use: it is at the revision of the kept one."""
        if _CONNECTION in os.environ or not self._used.is_file() or not self._kept.is_file():
            return False
        return _revision(self._used) == _revision(self._kept) is not None

    def keep(self) -> None:
        """Keep the database that a server has just made; nothing has run on it yet. Failing to is no error."""
        if not self._fresh or not self._used.is_file():
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._kept.parent, prefix=".tmp-")
            os.close(handle)
            source, target = sqlite3.connect(self._used), sqlite3.connect(name)
            try:
                with contextlib.closing(source), contextlib.closing(target):
                    source.backup(target)
                Path(name).replace(self._kept)
            finally:
                Path(name).unlink(missing_ok=True)


def _revision(database: Path) -> str | None:
    """Its last migration; None where that cannot be read."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database, timeout=1)) as opened:
        rows = opened.execute("select version_num from alembic_version").fetchall()
        return ",".join(sorted(name for (name,) in rows)) or None
    return None
