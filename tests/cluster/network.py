"""A network between namespaces, one for each node of the cluster, whose links can be cut, slow or lossy.

    with Network(["node1", "node2"]) as network:
        subprocess.run([*network.inside("node1"), "ping", "-c1", "node2"])
        network.disturb("node2", Link(loss=0.2))

Every node has a TAP device, and so has this machine; a thread here passes their frames on, as a switch does. So it
takes neither netem nor any other module of the kernel than tun. Needs root.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 65536
HOSTS = Path("/etc/netns")
"""Where `ip netns exec NAME` finds the files that it puts in the place of those in /etc."""
HERE = "here"
"""This machine's own device, under which the nodes reach the controller."""


@dataclass(frozen=True)
class Link:
    """How a device is connected: nothing comes through, some frames do not, or all come late."""

    is_cut: bool = False
    loss: float = 0.0
    """Share of the frames, in each direction."""
    delay: float = 0.0
    """Seconds, in each direction."""
    spared: range = range(0)
    """TCP ports: where there are any, all frames from or to these come through, and so does what is not TCP."""

    def disturbs(self, frame: bytes) -> bool:
        """Whether this frame is one of those that may be lost or late."""
        ports = _tcp_ports(frame)
        return not self.spared or (bool(ports) and not any(port in self.spared for port in ports))


class Network:
    """Namespaces and the switch between them."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._names = [HERE, *nodes]
        self._devices: dict[str, int] = {}
        self._links = dict.fromkeys(self._names, Link())
        self._chance = random.Random(0)
        self._late: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._ends = threading.Event()
        self._switch = threading.Thread(target=self._run, daemon=True)
        self.disturbed = 0
        """Frames that were lost or late, so far, without the uncounted ones."""
        self.uncounted = range(0)
        """TCP ports: where there are any, frames from or to these, and what is not TCP, are left out of the count."""

    def __enter__(self) -> "Network":
        self._remove()  # what a test that was killed has left
        try:
            for number, name in enumerate(self._names):
                self._add(number, name)
        except BaseException:
            self._remove()
            raise
        self._switch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._switch.join()
        for device in self._devices.values():
            os.close(device)
        self._remove()

    @staticmethod
    def lacks() -> str:
        """Say what a machine lacks for a network of its own, as a container may; nothing where it lacks nothing."""
        try:
            os.close(os.open("/dev/net/tun", os.O_RDWR))
            subprocess.run(
                ["ip", "netns", "del", "mill-probe"], capture_output=True, check=False
            )  # left by a kill
            _ip("netns", "add", "mill-probe")
            _ip("netns", "del", "mill-probe")
        except (OSError, subprocess.CalledProcessError) as error:
            return f"no network namespaces with TAP devices here: {error}"
        return ""

    def address(self, name: str) -> str:
        """The address of a node, or HERE."""
        return f"10.77.0.{1 + self._names.index(name)}"

    def inside(self, node: str) -> list[str]:
        """What a command line begins with that is to run in the node's namespace."""
        return ["ip", "netns", "exec", f"mill-{node}"]

    def disturb(self, name: str, link: Link) -> None:
        """From now on the link of a node is so."""
        self._links[name] = link

    def mend(self, name: str) -> None:
        """From now on the link of a node is as it was."""
        self._links[name] = Link()

    def _add(self, number: int, name: str) -> None:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._devices[name] = device
        tap = f"mill{number}"
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", tap.encode(), IFF_TAP | IFF_NO_PI))
        prefix: list[str] = []
        if name != HERE:
            folder = HOSTS / f"mill-{name}"
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(self._hosts(name))
            _ip("netns", "add", f"mill-{name}")
            _ip("link", "set", tap, "netns", f"mill-{name}")
            prefix = self.inside(name)
            _ip("link", "set", "lo", "up", prefix=prefix)
        _ip("link", "set", tap, "address", f"02:00:00:00:00:{number:02x}", prefix=prefix)
        _ip("address", "add", f"{self.address(name)}/24", "dev", tap, prefix=prefix)
        _ip("link", "set", tap, "mtu", "9000", "up", prefix=prefix)

    def _hosts(self, node: str) -> str:
        """A node's /etc/hosts, in which its own host name is its address on this network."""
        names = {self.address(name): [name] for name in self._names}
        names[self.address(node)].append(os.uname().nodename)
        return "".join(
            f"{address} {' '.join(of)}\n" for address, of in {"127.0.0.1": ["localhost"], **names}.items()
        )

    def _remove(self) -> None:
        for name in self._names[1:]:
            subprocess.run(["ip", "netns", "del", f"mill-{name}"], capture_output=True, check=False)
            folder = HOSTS / f"mill-{name}"
            (folder / "hosts").unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()

    def _run(self) -> None:
        """Pass frames on until the end."""
        names = {device: name for name, device in self._devices.items()}
        while not self._ends.is_set():
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, device, frame = heapq.heappop(self._late)
                _write(device, frame)
            wait = min(0.05, max(0.0, self._late[0][0] - now)) if self._late else 0.05
            for device in select.select(list(names), [], [], wait)[0]:
                with contextlib.suppress(BlockingIOError):
                    while frame := os.read(device, FRAME):
                        self._pass_on(names[device], frame)

    def _pass_on(self, sender: str, frame: bytes) -> None:
        for receiver in self._receivers(sender, frame[:6]):
            links = [link for link in (self._links[sender], self._links[receiver]) if link.disturbs(frame)]
            if any(link.is_cut or (link.loss and self._chance.random() < link.loss) for link in links):
                self._count(frame)
            elif delay := sum(link.delay for link in links):
                late = (time.monotonic() + delay, next(self._order), self._devices[receiver], frame)
                heapq.heappush(self._late, late)
                self._count(frame)
            else:
                _write(self._devices[receiver], frame)

    def _count(self, frame: bytes) -> None:
        self.disturbed += Link(spared=self.uncounted).disturbs(frame)

    def _receivers(self, sender: str, to: bytes) -> list[str]:
        """Whoever has this hardware address; all others, where it is of a group."""
        if to[0] & 1:
            return [name for name in self._names if name != sender]
        number = to[5]
        return [self._names[number]] if to[0] == 2 and number < len(self._names) else []


def _tcp_ports(frame: bytes) -> tuple[int, ...]:
    """Those from and to which an Ethernet frame goes; none where it is not TCP over IPv4."""
    if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return ()
    begins = 14 + 4 * (frame[14] & 15)
    return struct.unpack(">HH", frame[begins : begins + 4])


def _write(device: int, frame: bytes) -> None:
    # a full queue, or a device that is not up: the frame is lost, as on a wire
    with contextlib.suppress(OSError):
        os.write(device, frame)


def _ip(*arguments: str, prefix: Sequence[str] = ()) -> None:
    subprocess.run([*prefix, "ip", *arguments], check=True, capture_output=True)
