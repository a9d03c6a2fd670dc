"""The search itself finds what was planted, however it was written and wherever it lies."""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rloop_core.store import Store
from tests.secrets.search import Search

SECRET = "name:fake/Word+8Kd2?Zq=x"
WORD = SECRET.partition(":")[2]


def _found(search: Search) -> set[str]:
    return {kind for _, _, kind in search.found}


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (f"key = {SECRET};", "plain"),
        (f"https://{WORD}@host/", "plain"),
        (f"?token={quote(SECRET, safe='')}&", "as in a URL"),
        (f"GET /{quote(WORD)}", "as in a URL"),
        (json.dumps(SECRET).replace("/", "\\/"), "as in JSON"),
        (WORD.encode().hex(), "hexadecimal"),
        *((base64.b64encode(f"{'x' * before}{SECRET}{'y' * after}".encode()).decode(), "base64")
          for before in range(4) for after in range(4)),
        (base64.urlsafe_b64encode(f">>>{WORD}<<<".encode()).decode(), "base64"),
    ],
)  # fmt: skip
def test_every_encoding_of_a_secret_is_found(written: str, kind: str) -> None:
    search = Search({"TOKEN": SECRET})
    search.look("log", f"2026-11-21 | INFO | {written} | more".encode())
    assert kind in _found(search)
    assert {(place, name) for place, name, _ in search.found} == {("log", "TOKEN")}


def test_similar_text_is_not_found() -> None:
    search = Search({"TOKEN": SECRET})
    search.look("log", f"{SECRET[:-2]} {SECRET.upper()} {base64.b64encode(b'name:other')!r}".encode())
    assert not search.found


def test_packed_files_are_opened(tmp_path: Path) -> None:
    table = pa.table({"step": list(range(2000)), "completion": ["nothing"] * 1999 + [f"is {SECRET} here"]})
    pq.write_table(table, tmp_path / "shard.parquet", compression="zstd")
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(SECRET.encode()))
    (tmp_path / f"{WORD.replace('/', '-')}.txt").write_text("nothing")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "stage.log").write_text(f"a\n{SECRET}")
    search = Search({"TOKEN": SECRET, "DASHED": WORD.replace("/", "-")})
    search.look_at_files(tmp_path)
    name = tmp_path.name
    assert {place for place, _, _ in search.found} >= {
        f"{name}/shard.parquet: completion", f"{name}/old.log.gz (unpacked)", f"{name} (names)",
        f"{name}/deep/er/stage.log",
    }  # fmt: skip


def test_a_value_across_two_pages_of_a_database_is_found(tmp_path: Path) -> None:
    path = tmp_path / "prefect.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table log (message text)")
        for start in range(4000, 4200):
            connection.execute("insert into log values (?)", ["x" * start + SECRET + "y" * 4000])
    connection.close()
    raw, search = path.read_bytes(), Search({"TOKEN": SECRET})
    assert raw.count(SECRET.encode()) < 800
    search.look_at_files(tmp_path)
    assert (f"{tmp_path.name}/prefect.db: log", "TOKEN", "plain") in search.found


def test_every_object_of_a_store_is_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_bytes("run/iteration-000/explore/manifest.json", json.dumps({"identity": SECRET}).encode())
    search = Search({"TOKEN": SECRET})
    search.look_at_store(store)
    assert {place for place, _, _ in search.found} == {store.uri_of("run/iteration-000/explore/manifest.json")}
