"""A Hub on loopback for tests: what huggingface_hub asks of it when it makes, fills and reads a model repository, and
what `datasets` asks when it reads a dataset."""

import base64
import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

Files = dict[str, bytes]


class LoopbackHub:
    """Repositories in memory, each a list of commits; a test may take answers away."""

    def __init__(self) -> None:
        self.commits: dict[str, list[Files]] = {}
        self.buckets: dict[str, Files] = {}
        self.private: set[str] = set()
        """What nobody finds without a token."""
        self.gated: set[str] = set()
        """What everybody may look up, but not read."""
        self.names: dict[str, str] = {}
        """Who is known by which token; the one of all tests needs none."""
        self.organizations: dict[str, list[str]] = {}
        """That an account is a member of."""
        self.roles: dict[str, str] = {}
        """Of tokens that may do more than read."""
        self.failing = threading.Event()
        """Answer everything with 503."""
        self.silent = threading.Event()
        """Answer nothing at all."""
        self.over = threading.Event()
        """Set to end the silence for those who wait."""
        self.refused = ""
        """The token that is not valid any more."""
        self.read_only = False
        self.chunks = ""
        """Address of a chunk store that has all files too, as hf_xet asks it; none: it is for plain HTTP alone."""
        self.chunk_hashes: dict[bytes, str] = {}
        """By a file's content: how the chunk store names it."""
        self.drip: float | None = None
        """Seconds between two bytes of a file that is sent."""
        self.rush: threading.Barrier | None = None
        """Readings of a part of a file wait for each other here, and then all find the Hub busy, once."""
        self.stalled = ""
        """A file of which nothing comes beyond 99 %."""
        self.asked = threading.Semaphore(0)
        """Released by every request that fails."""
        self.url = ""

    def files(self, repository: str) -> Files:
        return self.commits[repository][-1]

    def revision(self, repository: str, number: int = -1) -> str:
        commits = self.commits[repository]
        return hashlib.sha1(f"{repository} {number % len(commits)}".encode()).hexdigest()

    def at(self, repository: str, revision: str) -> Files | None:
        commits = self.commits[repository]
        if revision == "main":
            return commits[-1]
        found = [files for n, files in enumerate(commits) if self.revision(repository, n) == revision]
        return found[0] if found else None


@contextmanager
def loopback_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[LoopbackHub]:
    """Serve a Hub that this process and those that it starts take for the real one."""
    hub = LoopbackHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    for module in ("huggingface_hub.hf_api", "transformers.utils.hub", "datasets.config"):
        import_module(module)  # with the environment as it is: what is patched goes back to that
    values = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "of-a-test", "HF_HUB_CACHE": str(cache), "HF_XET_CACHE": str(cache)}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    # In this process huggingface_hub has read its environment already.
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.url)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", hub.url)
    # transformers would go on asking the first one that it has asked, which is gone, and wait for it for minutes.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    monkeypatch.setattr("huggingface_hub.hf_api.HfApi.batch_bucket_files", _change_bucket)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _change_bucket(api: Any, bucket: str, *, add: Sequence[tuple[bytes, str]] = (), delete: Sequence[str] = ()) -> None:
    """In place of huggingface_hub's own way, by which bytes go to another service in a protocol of its own."""
    from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

    change = {"add": {name: base64.b64encode(content).decode() for content, name in add}, "delete": list(delete)}
    hf_raise_for_status(get_session().post(f"{api.endpoint}/api/buckets/{bucket}/batch", json=change))


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_HEAD = do_GET

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.hub.silent.is_set():
            self.hub.asked.release()
            self.hub.over.wait(60.0)
            self.close_connection = True
        elif self.hub.failing.is_set():
            self._answer(503, {"error": "told to fail"})
            self.hub.asked.release()
        elif self.hub.refused and self.headers["Authorization"] == f"Bearer {self.hub.refused}":
            self._answer(401, {"error": "invalid"}, {"X-Error-Message": "Invalid credentials in Authorization header"})
        else:
            self._route([unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")], body)

    def _route(self, path: list[str], body: bytes) -> None:
        named = re.search(r"(?:models/)?((?:datasets/)?[^/]+/[^/]+)", "/".join(path).removeprefix("api/"))
        if named and named[1] in self.hub.private and "Authorization" not in self.headers:
            self._answer(401, {"error": "none"}, {"X-Error-Code": "RepoNotFound"})
            return
        match path:
            case ["silent-chunks", *_]:
                self.hub.over.wait(60.0)
                self.close_connection = True
            case ["api", _, _, _, "xet-read-token", _]:
                ends = {"X-Xet-Access-Token": "short-lived", "X-Xet-Token-Expiration": "4000000000"}
                self._answer(200, {}, {"X-Xet-Cas-Url": self.hub.chunks, **ends})
            case ["api", "validate-yaml"]:
                self._answer(200, {"errors": [], "warnings": []})
            case ["api", "whoami-v2"]:
                token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
                name = self.hub.names.get(token)
                organizations = [{"name": organization} for organization in self.hub.organizations.get(name or "", ())]
                auth = {"accessToken": {"role": self.hub.roles.get(token, "read")}}
                who = {"name": name, "orgs": organizations, "auth": auth}
                self._answer(200, who) if name else self._answer(401, {"error": "Invalid credentials"})
            case ["api", "repos", "create"]:
                self._create(json.loads(body))
            case ["api", "buckets", owner, name, *rest]:
                self._bucket(f"{owner}/{name}", rest, body)
            case ["buckets", owner, name, "resolve", file] if f"{owner}/{name}" in self.hub.buckets:
                if f"{owner}/{name}" in self.hub.private:
                    self._answer(401, {"error": "log in"})
                else:
                    content = self.hub.buckets[f"{owner}/{name}"].get(file)
                    self._answer(404, {}) if content is None else self._answer(200, content)
            case ["api", "models", owner, name, *rest] if f"{owner}/{name}" in self.hub.commits:
                self._api(f"{owner}/{name}", rest, body)
            case ["api", "datasets", owner, name, *rest] if f"datasets/{owner}/{name}" in self.hub.commits:
                self._api(f"datasets/{owner}/{name}", rest, body)
            case ["datasets", owner, name, "resolve", revision, *file] if (
                f"datasets/{owner}/{name}" in self.hub.commits
            ):
                self._resolve(f"datasets/{owner}/{name}", revision, "/".join(file))
            case [owner, name, "resolve", revision, *file] if f"{owner}/{name}" in self.hub.commits:
                self._resolve(f"{owner}/{name}", revision, "/".join(file))
            case _:
                self._answer(404, {"error": "none"}, {"X-Error-Code": "RepoNotFound"})

    def _create(self, wanted: dict[str, Any]) -> None:
        kind = "datasets/" if wanted.get("type") == "dataset" else ""
        repository = f"{kind}{wanted['organization']}/{wanted['name']}"
        if self.hub.read_only:
            self._answer(403, {"error": "this token may only read"})
        elif repository in self.hub.commits:
            self._answer(409, {"error": "it exists", "url": f"{self.hub.url}/{repository}"})
        else:
            self.hub.commits[repository] = [{".gitattributes": b""}]
            if wanted.get("visibility") == "private" or wanted.get("private"):
                self.hub.private.add(repository)
            self._answer(200, {"url": f"{self.hub.url}/{repository}", "id": repository, "name": repository})

    def _bucket(self, bucket: str, rest: list[str], body: bytes) -> None:
        if self.hub.read_only:
            self._answer(403, {"error": "this token may only read"})
        elif not rest:
            known = bucket in self.hub.buckets
            self.hub.buckets.setdefault(bucket, {})
            self._answer(409 if known else 200, {"url": f"{self.hub.url}/buckets/{bucket}", "id": bucket})
        elif rest[0] == "batch":
            change = json.loads(body)
            files = {name: base64.b64decode(content) for name, content in change["add"].items()}
            kept = {**self.hub.buckets[bucket], **files}
            self.hub.buckets[bucket] = {name: kept[name] for name in kept if name not in change["delete"]}
            self._answer(200, {"failed": []})
        else:
            listed = _listed(self.hub.buckets[bucket], "/".join(rest[1:]), recursive=True)
            self._answer(200, [{**entry, "xetHash": entry["oid"]} for entry in listed])

    def _api(self, repository: str, rest: list[str], body: bytes) -> None:
        files = self.hub.files(repository)
        if rest and rest[0] in ("preupload", "commit") and self.hub.read_only:
            self._answer(403, {"error": "this token may only read"})
        elif rest and rest[0] == "preupload":
            asked = [file["path"] for file in json.loads(body)["files"]]
            modes = [
                {"path": p, "uploadMode": "regular", "shouldIgnore": False, "oid": _oid(files.get(p))} for p in asked
            ]
            self._answer(200, {"files": modes})
        elif rest and rest[0] == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            new = {v["value"]["path"]: base64.b64decode(v["value"]["content"]) for v in lines if v["key"] == "file"}
            self.hub.commits[repository].append({**files, **new})
            sha = self.hub.revision(repository)
            self._answer(
                200, {"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{repository}/commit/{sha}"}
            )
        elif rest and rest[0] == "tree":
            there = self.hub.at(repository, rest[1]) or files
            self._answer(200, _listed(there, "/".join(rest[2:]), "recursive=true" in self.path.lower()))
        elif rest and rest[0] == "paths-info":
            asked = parse_qs(body.decode())["paths"]
            found = [
                {"type": "file", "path": p, "size": len(files[p]), "oid": _oid(files[p])} for p in asked if p in files
            ]
            self._answer(200, found)
        else:
            sha = self.hub.revision(repository)
            if rest and rest[0] == "revision" and rest[1] != "main":
                files, sha = self.hub.at(repository, rest[1]) or files, rest[1]
            siblings = [{"rfilename": name} for name in files]
            private = repository in self.hub.private
            self._answer(200, {"id": repository, "sha": sha, "private": private, "siblings": siblings})

    def _resolve(self, repository: str, revision: str, name: str) -> None:
        files = self.hub.at(repository, revision)
        if repository in self.hub.gated:
            self._answer(403, {"error": "ask for access"}, {"X-Error-Code": "GatedRepo"})
            return
        if files is None:
            self._answer(404, {"error": "none"}, {"X-Error-Code": "RevisionNotFound"})
            return
        number = next(n for n, commit in enumerate(self.hub.commits[repository]) if commit is files)
        commit = {"X-Repo-Commit": self.hub.revision(repository, number)}
        if name not in files:
            self._answer(404, {"error": "none"}, {"X-Error-Code": "EntryNotFound", **commit})
            return
        content, headers = files[name], {"ETag": f'"{_oid(files[name])}"', "Accept-Ranges": "bytes", **commit}
        if self.hub.chunks:
            token = f"{self.hub.url}/api/models/{repository}/xet-read-token/{revision}"
            headers["X-Xet-Hash"] = self.hub.chunk_hashes.get(content, "b" * 64)
            headers["Link"] = f'<{token}>; rel="xet-auth"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if asked is None:
            self._answer(200, content, headers)
        else:
            if (rush := self.hub.rush) is not None:
                rush.wait(60.0)
                self.hub.rush = None
                self._answer(429, {"error": "busy"}, {"Retry-After": "0"})
                return
            part = content[int(asked[1]) : int(asked[2]) + 1 if asked[2] else None]
            headers["Content-Range"] = f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(content)}"
            comes = len(content) * 99 // 100 - int(asked[1]) if name == self.hub.stalled else len(part)
            self._answer(206, part, headers, comes)

    def _answer(self, code: int, body: Any, headers: dict[str, str] | None = None, comes: int = sys.maxsize) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and comes < len(content):
            self.wfile.write(content[: max(comes, 0)])
            self.wfile.flush()
            self.hub.asked.release()
            self.hub.over.wait(600.0)
            self.close_connection = True
        elif self.command != "HEAD":
            for part in [content] if self.hub.drip is None else [bytes([byte]) for byte in content]:
                self.wfile.write(part)
                self.hub.over.wait(self.hub.drip or 0.0)


def _listed(files: Files, folder: str, recursive: bool) -> list[dict[str, Any]]:
    """What lies in a folder; with `recursive` also below its folders."""
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, content in files.items():
        inside = path.removeprefix(prefix)
        if not path.startswith(prefix):
            continue
        if recursive or "/" not in inside:
            entries[path] = {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
        else:
            below = prefix + inside.split("/")[0]
            entries[below] = {"type": "directory", "path": below, "oid": _oid(below.encode())}
    return list(entries.values())


def _oid(content: bytes | None) -> str | None:
    """As git names a file."""
    return None if content is None else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
