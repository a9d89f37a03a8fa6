"""A stand-in for the Hugging Face hub on this machine: the calls that a push makes, answered as the hub does."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN, READ_ONLY = "hf_standin_write", "hf_standin_read"
OWNER = "someone"


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    sha: str = "0" * 40


@dataclass
class Hub:
    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    refuses_cards: bool = False


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/").removesuffix("/revision/main")
        if not self._may(TOKEN, READ_ONLY):
            return
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._answer(404, {"error": "Repository not found"})
            return
        self._answer(200, {"id": name, "modelId": name, "sha": repository.sha, "private": repository.private})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.calls.append(self.path)
        if not self._may(TOKEN, READ_ONLY):
            return
        if self.path == "/api/validate-yaml":
            errors = [{"message": '"language" must be ISO 639'}] if self.hub.refuses_cards else []
            self._answer(400 if errors else 200, {"errors": errors, "warnings": []})
            return
        if not self._may(TOKEN):
            return
        if self.path == "/api/repos/create":
            self._create(json.loads(body))
            return
        name, action = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+?)(?:\.git)?/(.+)", self.path).groups()  # type: ignore[union-attr]
        repository = self.hub.repositories[name]
        if action == "preupload/main":
            self._preupload(repository, json.loads(body))
        elif action == "info/lfs/objects/batch":
            self._batch(json.loads(body))
        elif action == "commit/main":
            self._commit(name, repository, [json.loads(line) for line in body.splitlines()])

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.large[oid] = body
        self._answer(200, {})

    def _create(self, body: dict[str, Any]) -> None:
        name = f"{body['organization'] or OWNER}/{body['name']}"
        url = {"url": f"{self.hub.url}/{name}"}
        if name in self.hub.repositories:
            self._answer(409, url | {"error": "You already created this model repo"})
            return
        private = body.get("visibility") == "private" or bool(body.get("private"))
        self.hub.repositories[name] = Repository(private)
        self._answer(200, url)

    def _preupload(self, repository: Repository, body: dict[str, Any]) -> None:
        answers = []
        for file in body["files"]:
            large = file["path"].endswith(".safetensors")
            there = repository.files.get(file["path"])
            oid = None if there is None else oid_of(there, large)
            mode = "lfs" if large else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._answer(200, {"files": answers})

    def _batch(self, body: dict[str, Any]) -> None:
        objects = []
        for wanted in body["objects"]:
            there = wanted["oid"] in self.hub.large
            upload = {"upload": {"href": f"{self.hub.url}/large/{wanted['oid']}", "header": {}}}
            objects.append(
                {"oid": wanted["oid"], "size": wanted["size"]} | ({} if there else {"actions": upload})
            )
        self._answer(200, {"objects": objects, "transfer": "basic"})

    def _commit(self, name: str, repository: Repository, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.large[value["oid"]]
        repository.commits.append(lines[0]["value"])
        repository.sha = hashlib.sha1(repr(sorted(repository.files.items())).encode()).hexdigest()
        url = f"{self.hub.url}/{name}/commit/{repository.sha}"
        self._answer(200, {"commitUrl": url, "commitOid": repository.sha, "pullRequestUrl": None})

    def _may(self, *tokens: str) -> bool:
        given = self.headers.get("authorization", "").removeprefix("Bearer ")
        if given in tokens:
            return True
        known = given in (TOKEN, READ_ONLY)
        self._answer(403 if known else 401, {"error": "Forbidden" if known else "Invalid token"})
        return False

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def oid_of(content: bytes, large: bool) -> str:
    """The id by which the hub knows a file."""
    if large:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
