"""A small stand-in for W&B's server: keeps what runs, artifacts, alerts and views it is sent, and can go away.

It answers the calls that wandb-core and wandb-workspaces make, by the name of the GraphQL operation, over plain HTTP.
A test asks it what it holds: `points(run)`, `alerts`, `artifacts`, `views`, and `calls` for all else.
"""

import base64
import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

ENTITY = "crew"


@dataclass
class Run:
    """One run on the server."""

    settings: dict[str, Any]
    points: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0
    exit_code: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        """As W&B shows it: without the wrapping of each value, and without what W&B adds itself."""
        values = json.loads(self.settings.get("config") or "{}")
        return {key: value["value"] for key, value in values.items() if key != "_wandb"}


@dataclass
class Artifact:
    """One version of an artifact; of equal content there is one."""

    id: str
    name: str
    type: str
    digest: str
    manifest: dict[str, Any] = field(default_factory=dict)
    made_by: list[str] = field(default_factory=list)
    used_by: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


class Standin:
    """The server's memory; `answer` is its whole API."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.alerts: list[dict[str, Any]] = []
        self.views: dict[str, dict[str, Any]] = {}
        self.projects: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.errors: list[str] = []
        """What the stand-in could not answer: its own mistakes, that no test may have."""
        self.received = bytearray()
        """Every byte of every request, headers but for the key's own included: where a test looks for secrets."""
        self.lock = threading.Lock()
        self.url = ""
        self.gone, self.leaves_after = False, ""
        self.refuses = 0
        """Status with which every request is answered: 401 for a wrong key; 0: as they should be."""

    def points(self, run: str) -> list[dict[str, Any]]:
        """The history of a run, in the order that it came in, without W&B's own fields."""
        return [{k: v for k, v in p.items() if not k.startswith("_")} for p in self.runs[run].points]

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of one GraphQL call."""
        found = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
        name = found[1] if found else ""
        self.calls.append(name)
        self.gone = name == self.leaves_after
        method = getattr(self, f"_{name[:1].lower()}{name[1:]}", None)
        return method(variables) if method else self._introspection(query)

    def _introspection(self, query: str) -> dict[str, Any]:
        return dict.fromkeys(re.findall(r"^\s{2,4}(\w+)\s*[({]", query, re.MULTILINE))

    def _viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        return {
            "viewer": {
                "id": "u1",
                "entity": ENTITY,
                "username": "person",
                "flags": "{}",
                "teams": teams,
                "apiKeys": {"edges": []},
                "email": "",
                "name": "person",
                "admin": False,
            }
        }

    _getViewer = _viewer
    _getViewerEntity = _viewer

    def _serverInfo(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"cliVersionInfo": {"max_cli_version": "99.0"}, "latestLocalVersionInfo": None}}

    def _runResumeStatus(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables.get("name", ""))
        project = {"id": "p1", "name": variables["project"], "entity": {"id": "e1", "name": ENTITY}}
        if run is None:
            return {"model": {**project, "bucket": None}}
        count = len(run.points)
        bucket = {
            "id": variables["name"],
            "name": variables["name"],
            "summaryMetrics": json.dumps(run.summary),
            "displayName": run.settings.get("displayName"),
            "logLineCount": 0,
            "historyLineCount": count,
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(point) for point in run.points[-1:]]),
            "eventsTail": json.dumps([]),
            "config": run.settings.get("config") or "{}",
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),  # wandb-core takes a run without it for one never begun
        }
        return {"model": {**project, "bucket": bucket}}

    def _upsertBucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables["name"]
        fresh = name not in self.runs
        run = self.runs.setdefault(name, Run({}))
        given = {key: value for key, value in variables.items() if value is not None}
        run.attempts += int("groupName" in given or "jobType" in given or fresh)
        run.settings |= given
        self.projects.add(variables.get("project") or run.settings.get("project", ""))
        project = {
            "id": "p1",
            "name": variables.get("project"),
            "entity": {"id": "e1", "name": ENTITY},
            "organization": None,
        }
        bucket = {
            "id": name,
            "name": name,
            "displayName": run.settings.get("displayName") or name,
            "description": "",
            "config": run.settings.get("config") or "{}",
            "sweepName": None,
            "project": project,
            "historyLineCount": len(run.points),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": fresh}}

    def _notifyScriptableRunAlert(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.alerts.append(variables)
        return {"notifyScriptableRunAlert": {"success": True}}

    def _createArtifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        given = variables.get("input", variables)
        name, digest = given["artifactCollectionName"], given["digest"]
        key = base64.b64encode(f"{name}:{digest}".encode()).decode()
        known = self.artifacts.get(key)
        if known is None:
            known = self.artifacts[key] = Artifact(key, name, given["artifactTypeName"], digest)
        known.metadata |= json.loads(given.get("metadata") or "{}")
        if given.get("runName") and given["runName"] not in known.made_by:
            known.made_by.append(given["runName"])
        state = "COMMITTED" if known.manifest else "PENDING"
        return {
            "createArtifact": {
                "artifact": {
                    "id": key,
                    "state": state,
                    "artifactSequence": {"id": name, "latestArtifact": None},
                }
            }
        }

    def _useArtifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        given = variables.get("input", variables)
        self.artifacts[given["artifactID"]].used_by.append(given["runName"])
        return {"useArtifact": {"artifact": {"id": given["artifactID"]}}}

    def _artifactByID(self, variables: dict[str, Any]) -> dict[str, Any]:
        known = self.artifacts[variables["id"]]
        entity = {"id": "e1", "name": ENTITY, "organization": None}
        project = {"id": "p1", "internalId": "p1", "name": "p", "entityName": ENTITY, "entity": entity}
        sequence = {
            "__typename": "ArtifactSequence",
            "id": known.name,
            "name": known.name,
            "project": project,
        }
        return {
            "artifact": {
                "__typename": "Artifact",
                "id": known.id,
                "artifactSequence": sequence,
                "versionIndex": 0,
                "artifactType": {"name": known.type},
                "description": None,
                "metadata": json.dumps(known.metadata),
                "ttlDurationSeconds": -1,
                "ttlIsInherited": True,
                "tags": [],
                "historyStep": None,
                "state": "COMMITTED",
                "size": 1,
                "digest": known.digest,
                "commitHash": None,
                "fileCount": 1,
                "createdAt": "2025-01-01T00:00:00Z",
                "updatedAt": None,
                "aliases": [],
            }
        }

    def _commitArtifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        key = variables.get("artifactID") or variables.get("input", {}).get("artifactID")
        return {"commitArtifact": {"artifact": {"id": key, "digest": self.artifacts[key].digest}}}

    def _createArtifactManifest(self, variables: dict[str, Any]) -> dict[str, Any]:
        key = variables["artifactID"]
        return {
            "createArtifactManifest": {
                "artifactManifest": {
                    "id": key,
                    "file": {
                        "id": "f",
                        "name": variables["name"],
                        "displayName": variables["name"],
                        "uploadUrl": f"{self.url}/upload/manifest/{key}",
                        "uploadHeaders": [],
                    },
                }
            }
        }

    def _createArtifactFiles(self, variables: dict[str, Any]) -> dict[str, Any]:
        edges = [
            {
                "node": {
                    "id": spec["name"],
                    "name": spec["name"],
                    "displayName": spec["name"],
                    "uploadUrl": f"{self.url}/upload/{spec['artifactID']}/{spec['name']}",
                    "uploadHeaders": [],
                    "uploadMultipartUrls": None,
                    "storagePath": spec["name"],
                    "artifact": {"id": spec["artifactID"]},
                }
            }
            for spec in variables["input"]["artifactFiles"]
        ]
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _createRunFiles(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = variables["run"]
        files = [
            {"name": name, "uploadUrl": f"{self.url}/upload/{run}/{name}"} for name in variables["files"]
        ]
        return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}

    def _projectInternalId(self, variables: dict[str, Any]) -> dict[str, Any]:
        there = variables["projectName"] in self.projects
        return {"project": {"id": "p1", "internalId": "p1"} if there else None}

    def _getDefaultEntity(self, variables: dict[str, Any]) -> dict[str, Any]:
        return self._viewer(variables)

    def _createProject(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables["input"]["name"]
        self.projects.add(name)
        project = {"id": "p1", "name": name, "entityName": ENTITY, "description": None}
        return {"result": {"project": project, "model": project, "inserted": True}}

    def _getProjects(self, variables: dict[str, Any]) -> dict[str, Any]:
        whose = {"entityName": ENTITY, "createdAt": "", "isBenchmark": False, "user": None}
        edges = [{"node": {"id": name, "name": name, **whose}} for name in sorted(self.projects)]
        return {"models": {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}}

    def _upsertView(self, variables: dict[str, Any]) -> dict[str, Any]:
        key = variables.get("id") or f"view{len(self.views) + 1}"
        self.views[key] = variables
        view = {
            "id": key,
            "type": variables["type"],
            "name": variables["name"],
            "displayName": variables["displayName"],
            "description": variables.get("description") or "",
            "project": {"id": "p1", "name": variables["projectName"], "entityName": variables["entityName"]},
            "spec": variables["spec"],
            "updatedAt": "2025-01-01T00:00:00",
        }
        return {"upsertView": {"view": view, "inserted": True}}

    _upsertView2 = _upsertView

    def stream(self, run: str, body: dict[str, Any]) -> None:
        """Takes lines of a run's files: history goes by offset, as the real server has it, so that a repeated
        request adds nothing."""
        known = self.runs.setdefault(run, Run({}))
        for name, chunk in (body.get("files") or {}).items():
            if name.startswith("wandb-history"):
                offset = chunk["offset"]
                known.points[offset:] = [json.loads(line) for line in chunk["content"]]
            elif name.startswith("wandb-summary"):
                known.summary = json.loads(chunk["content"][-1])
        if body.get("complete"):
            known.exit_code = body.get("exitcode")


def _handler(state: Standin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            path = urlparse(self.path).path
            with state.lock:
                if state.gone:
                    self.close_connection = True
                    return
                state.received += self.path.encode() + body
                if state.refuses:
                    self._reply({"errors": [{"message": "user is not logged in"}]}, state.refuses)
                elif path == "/graphql":
                    call = json.loads(body)
                    try:
                        self._reply({"data": state.answer(call["query"], call.get("variables") or {})})
                    except (KeyError, TypeError, ValueError) as error:
                        state.errors.append(f"{error!r} in {body.decode()}")
                        self._reply({"errors": [{"message": "the stand-in cannot answer this"}]})
                elif path.endswith("/file_stream"):
                    state.stream(path.split("/")[-2], json.loads(body))
                    self._reply({})
                else:
                    self._reply({})

        def do_PUT(self) -> None:
            body = self._body()
            with state.lock:
                if state.gone:
                    self.close_connection = True
                    return
                state.received += self.path.encode() + body
                kind, _, name = urlparse(self.path).path.removeprefix("/upload/").partition("/")
                state.files[f"{kind}/{name}"] = body
                if kind == "manifest":
                    state.artifacts[name].manifest = json.loads(body)
                self._reply({})

        def do_GET(self) -> None:
            self._reply({})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                data = b""
                while size := int(self.rfile.readline(), 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

        def _reply(self, value: Any, status: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class Gone(ThreadingHTTPServer):
    """A server that can be stopped for good, its open connections with it."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, which is its right."""


@contextmanager
def serving(state: Standin, leaves_after: str = "") -> Iterator[Standin]:
    """The stand-in at 127.0.0.1, until the block ends, or until it has answered the call `leaves_after`."""
    server = Gone(("127.0.0.1", 0), _handler(state))
    state.gone, state.leaves_after = False, leaves_after
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
