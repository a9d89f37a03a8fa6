"""docker/spot.sh and a stand-in of each cloud's metadata server: nothing before the notice, the command after it."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.command_line import ROOT

SCRIPT = ROOT / "docker/spot.sh"
ASKED = {  # the header without which the cloud does not answer; what it says before (None: 404) and after
    "aws": ("/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token", "secret", None, "{}"),
    "gcp": ("/computeMetadata/v1/instance/preempted", "Metadata-Flavor", "Google", "FALSE", "TRUE"),
    "azure": (
        "/metadata/scheduledevents?api-version=2020-07-01",
        "Metadata",
        "true",
        '{"Events": [{"EventType": "Freeze", "Resources": ["training_1"]}]}',
        '{"Events": [{"EventType": "Preempt", "Resources": ["training_1"]}]}',
    ),
}
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
"""Where Azure says what this machine is called, as its events name it."""


def event(kind: str, *machines: str) -> dict[str, object]:
    """As Azure's documentation has one."""
    return {
        "EventId": "A123BC45", "EventStatus": "Scheduled", "EventType": kind, "ResourceType": "VirtualMachine",
        "Resources": [*machines], "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT", "Description": "",
        "EventSource": "Platform", "DurationInSeconds": -1,
    }  # fmt: skip


class Cloud(BaseHTTPRequestHandler):
    """What a machine is told of itself; the notice comes with the third look."""

    looks = 0
    documents: ClassVar[list[str]] = []
    """What Azure's scheduled events are, look for look, and the last one from then on; empty: as ASKED has it."""

    def do_PUT(self) -> None:
        granted = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self.say("secret" if granted else None)

    def do_GET(self) -> None:
        if self.path == NAME and self.headers.get("Metadata") == "true":
            self.say("training_1")
            return
        if Cloud.documents and self.path == ASKED["azure"][0]:
            Cloud.looks += 1
            self.say(Cloud.documents[min(Cloud.looks, len(Cloud.documents)) - 1])
            return
        for path, header, value, before, after in ASKED.values():
            if (path, value) == (self.path, self.headers.get(header)):
                Cloud.looks += 1
                self.say(after if Cloud.looks >= 3 else before)
                return
        self.say(None)

    def say(self, text: str | None) -> None:
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[str]:
    Cloud.looks, Cloud.documents = 0, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Cloud) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def watch(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        env=os.environ | {"EVERY": "0.05", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("cloud", ASKED)
def test_the_command_runs_at_the_notice(cloud: str, metadata: str) -> None:
    result = watch(cloud, "echo", "stopped now", METADATA=metadata)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "stopped now"
    assert Cloud.looks == 3


@pytest.mark.parametrize(
    "others",
    [
        [],
        [event("Preempt", "training_0")],
        [event("Preempt", "training_10"), event("Preempt", "other_training_1")],
        [event("Freeze", "training_1"), event("Preempt", "training_0", "training_2")],
        [event("Preempt")],
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_an_azure_event_of_another_machine_stops_nothing(
    others: list[dict[str, object]], indent: int | None, metadata: str
) -> None:
    """A scale set's machines are all told of all events."""
    mine = event("Preempt", "training_0", "Training_1")
    documents = [{"DocumentIncarnation": 1, "Events": events} for events in (others, others, [*others, mine])]
    Cloud.documents = [json.dumps(document, indent=indent) for document in documents]
    assert watch("azure", "echo", "stopped now", METADATA=metadata).stdout.splitlines()[-1] == "stopped now"
    assert Cloud.looks == 3


def test_a_wrong_call_says_how(metadata: str) -> None:
    for words in ((), ("aws",), ("elsewhere", "echo")):
        result = watch(*words, METADATA=metadata)
        assert (result.returncode, result.stderr.split()[0]) == (2, "usage:")
