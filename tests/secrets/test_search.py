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

from rloop_core.store import Store
from tests.secrets.search import Search

SECRET = "name:fake/Word+8Kd2?Zq=x"
WORD = SECRET.partition(":")[2]
WRITTEN = {
    f"key = {SECRET};": "plain",
    f"https://{WORD}@host/": "plain",
    f"?token={quote(SECRET, safe='')}&": "as in a URL",
    f"GET /{quote(WORD)}": "as in a URL",
    json.dumps(SECRET).replace("/", "\\/"): "as in JSON",
    WORD.encode().hex(): "hexadecimal",
    base64.urlsafe_b64encode(f">>>{WORD}<<<".encode()).decode(): "base64",
} | {
    base64.b64encode(f"{'x' * before}{SECRET}{'y' * after}".encode()).decode(): "base64"
    for before in range(4)
    for after in range(4)
}


def test_every_encoding_of_a_secret_is_found_and_similar_text_is_not() -> None:
    for written, kind in WRITTEN.items():
        search = Search({"TOKEN": SECRET})
        search.look("log", f"2026-11-21 | INFO | {written} | more".encode())
        assert kind in {how for _, _, how in search.found}, written
        assert {(place, name) for place, name, _ in search.found} == {("log", "TOKEN")}
    search = Search({"TOKEN": SECRET})
    search.look("log", f"{SECRET[:-2]} {SECRET.upper()} {base64.b64encode(b'name:other')!r}".encode())
    assert not search.found


def test_packed_files_databases_and_stores_are_opened(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    table = pa.table({"step": list(range(2000)), "completion": ["nothing"] * 1999 + [f"is {SECRET} here"]})
    pq.write_table(table, folder / "shard.parquet", compression="zstd")
    (folder / "old.log.gz").write_bytes(gzip.compress(SECRET.encode()))
    (folder / f"{WORD.replace('/', '-')}.txt").write_text("nothing")
    with sqlite3.connect(folder / "prefect.db") as connection:  # some value lies across two pages
        connection.execute("create table log (message text)")
        for start in range(4000, 4200):
            connection.execute("insert into log values (?)", ["x" * start + SECRET + "y" * 4000])
    connection.close()
    store = Store(str(tmp_path / "store"))
    store.write_bytes("run/run.json", json.dumps({"identity": SECRET}).encode())
    search = Search({"TOKEN": SECRET, "DASHED": WORD.replace("/", "-")})
    search.look_at_files(folder)
    search.look_at_store(store)
    assert {place for place, _, _ in search.found} >= {
        "files/shard.parquet: completion", "files/old.log.gz (unpacked)", "files (names)", "files/prefect.db: log",
        store.uri_of("run/run.json"),
    }  # fmt: skip
