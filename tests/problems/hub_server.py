"""As much of the Hugging Face hub, on the loopback, as `datasets.load_dataset` asks for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers import Handler, serving

_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_RESOLVE = re.compile(rf"/datasets/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_API = re.compile(
    rf"/api/datasets/{_REPO}(?:/(?P<what>revision|tree|paths-info)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?"
)


@dataclass
class Repository:
    """A data set: its commit, and its files by path."""

    commit: str
    files: dict[str, bytes]


@dataclass
class Hub:
    """Data sets by id, and every request as (method, path)."""

    url: str
    repositories: dict[str, Repository]
    requests: list[tuple[str, str]] = field(default_factory=list)

    def revisions_asked(self, repo: str) -> set[str]:
        """The revisions by which a data set was asked for."""
        asked = re.compile(rf"datasets/{repo}/(?:resolve|revision|tree|paths-info)/([^/?]+)")
        return {match[1] for _, path in self.requests if (match := asked.search(path))}


class _Handler(Handler):
    hub: Hub

    def _answer(self) -> None:
        body = self.body()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if path == "/":
            self.answer(200, b"a hub")
        elif match := _RESOLVE.fullmatch(path):
            self._file(match)
        elif match := _API.fullmatch(path):
            self._api(match, body)
        else:
            self.answer(404, b"{}")

    do_HEAD = do_GET = do_POST = _answer  # noqa: N815

    def _repository(self, match: re.Match[str]) -> Repository | None:
        repository = self.hub.repositories.get(match["repo"])
        if repository is None:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif match["revision"] not in (None, "main", repository.commit):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        else:
            return repository
        return None

    def _file(self, match: re.Match[str]) -> None:
        repository = self._repository(match)
        if repository is None:
            return
        content = repository.files.get(match["path"])
        headers = {"X-Repo-Commit": repository.commit}
        if content is None:
            self.answer(404, b"{}", {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        else:
            self.answer(200, content, {**headers, "ETag": f'"{_sha(content)}"', "Accept-Ranges": "none"})

    def _api(self, match: re.Match[str], body: bytes) -> None:
        repository = self._repository(match)
        if repository is None:
            return
        entries = [
            {"type": "file", "path": path, "size": len(content), "oid": _sha(content)}
            for path, content in sorted(repository.files.items())
        ]
        folders = {str(parent) for path in repository.files for parent in Path(path).parents} - {"."}
        entries += [{"type": "directory", "path": name, "size": 0, "oid": _sha(name.encode())} for name in folders]
        if match["what"] == "tree":
            under = (match["path"] or "").rstrip("/")
            self._json([one for one in entries if not under or str(one["path"]).startswith(f"{under}/")])
        elif match["what"] == "paths-info":
            wanted = (json.loads(body) if body.startswith(b"{") else {}).get("paths", [])
            self._json([one for one in entries if one["path"] in wanted])
        else:
            siblings = [{"rfilename": path} for path in repository.files]
            self._json({"id": match["repo"], "sha": repository.commit, "siblings": siblings, "tags": []})

    def _json(self, value: object) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serve(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """A hub that holds these data sets, for as long as the block lasts."""
    handler = type("Hub", (_Handler,), {})
    with serving(handler) as url:
        handler.hub = Hub(url, repositories)
        yield handler.hub
