"""A Dockerfile in; an image, and containers of it, out, without a Docker engine: buildah builds, podman runs.

    with Images() as images:
        images.add_base("debian:bookworm-slim")
        images.build("docker/Dockerfile.cpu", "maskmill:cpu")
        print(images.run("maskmill:cpu", "settings").stdout)

Needs root, and Debian's buildah, podman, runc and debootstrap. Images lie in a folder of their own, which goes at the
end; MASKMILL_IMAGES names one that stays, so that the next run builds only what has changed.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.command_line import ROOT

PROGRAMS = ("buildah", "podman", "runc", "debootstrap")
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")  # those of root are not to be had


class ImageError(Exception):
    """Nothing can be built here, or a build failed."""


class Images:
    """A store of images, and the containers that run."""

    def __init__(self) -> None:
        lacking = [program for program in PROGRAMS if shutil.which(program) is None]
        if lacking or os.geteuid() != 0:
            raise ImageError(
                f"needs root, and {', '.join(PROGRAMS)}; missing: {', '.join(lacking) or 'root'}"
            )
        self._kept = os.environ.get("MASKMILL_IMAGES", "")
        self.folder = Path(self._kept or tempfile.mkdtemp(prefix="images-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._driver = "overlay" if self._works("overlay") else "vfs"

    def __enter__(self) -> "Images":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call([*self._podman(), "rm", "--all", "--force", "--time", "0"], check=False)
        self._call([*self._buildah(), "rm", "--all"], check=False)
        if not self._kept:
            self._delete()

    def add_base(self, name: str) -> None:
        """Debian as its own tools install it, under the name that a Dockerfile starts from; its tag begins with the
        name of the release."""
        if self._call([*self._buildah(), "inspect", "--type", "image", name], check=False).returncode == 0:
            return
        release = name.rpartition(":")[2].partition("-")[0]
        root = self.folder / "base"
        shutil.rmtree(root, ignore_errors=True)
        self._call(["debootstrap", "--variant=minbase", release, str(root)])
        container = self._call([*self._buildah(), "from", "scratch"]).stdout.strip()
        self._call([*self._buildah(), "add", "--quiet", container, str(root), "/"])
        self._call([*self._buildah(), "config", "--cmd", "/bin/bash", container])
        self._call([*self._buildah(), "commit", "--quiet", "--rm", container, name])
        shutil.rmtree(root)

    def build(self, dockerfile: str, tag: str, arguments: Mapping[str, str]) -> None:
        """Builds the image from the repository as it lies here, with this machine's way to pip's packages."""
        options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        for inside, outside in self._ways_of_pip().items():
            options += ["--volume", f"{outside}:{inside}:ro"]
        self._call(
            [*self._buildah(), "bud", "--isolation=chroot", "--pull-never", "--layers", "--format=docker",
             *options, "--tag", tag, "--file", str(ROOT / dockerfile), str(ROOT)]
        )  # fmt: skip

    def described(self, tag: str) -> dict[str, Any]:
        """What the image says of itself: User, Entrypoint, Env, Labels, Healthcheck, ..."""
        config: dict[str, Any] = json.loads(self._call([*self._podman(), "inspect", tag]).stdout)[0]
        return config["Config"] | {"Healthcheck": config.get("Healthcheck")}

    def size(self, tag: str) -> int:
        """The bytes of the image's files, those of its base included."""
        return int(json.loads(self._call([*self._podman(), "inspect", tag]).stdout)[0]["Size"])

    def command(self, tag: str, *words: str, options: Sequence[str] = ()) -> list[str]:
        """The command line that runs a container."""
        return [*self._podman(), "run", "--rm", *LIMITS, *options, tag, *words]

    def run(
        self, tag: str, *words: str, options: Sequence[str] = (), code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a container to its end; fails with its output unless it ends with the expected exit code."""
        result = self._call(self.command(tag, *words, options=options), check=False)
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def start(self, tag: str, *words: str, options: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Starts a container, whose output is the process's."""
        return subprocess.Popen(
            self.command(tag, *words, options=options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tell(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Any other command of podman's: exec, stop, healthcheck; `code` None: whatever its exit code."""
        result = self._call([*self._podman(), *words], check=False)
        assert code in (None, result.returncode), (
            f"{words}: {result.returncode}\n{result.stdout}{result.stderr}"
        )
        return result

    def _works(self, driver: str) -> bool:
        self._driver = driver
        return self._call([*self._buildah(), "info"], check=False).returncode == 0

    def _storage(self) -> list[str]:
        store = [f"--root={self.folder}/store", f"--runroot={self.folder}/run"]
        return [*store, f"--storage-driver={self._driver}"]

    def _buildah(self) -> list[str]:
        return ["buildah", *self._storage()]

    def _podman(self) -> list[str]:
        runtime = shutil.which("runc") or "runc"
        options = ["--cgroup-manager=cgroupfs", "--events-backend=file", f"--runtime={runtime}"]
        return ["podman", *self._storage(), *options]

    def _ways_of_pip(self) -> dict[str, str]:
        """Paths inside -> paths here: pip's configuration, and the certificates and local folders that it names."""
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        ).stdout
        found = dict(line.partition("=")[::2] for line in listed.splitlines())
        settings = {name.rpartition(".")[2]: ast.literal_eval(value) for name, value in sorted(found.items())}
        ways, lines = {}, ["[global]"]
        for name in ("cert", "proxy", "index-url", "extra-index-url", "find-links", "no-index"):
            value = settings.get(name)
            if value is None:
                continue
            if name == "cert":  # not where packages of the image put theirs
                ways["/etc/pip-certificates.crt"], value = value, "/etc/pip-certificates.crt"
            for word in value.split():
                path = Path(word.removeprefix("file://"))
                if name != "cert" and path.is_absolute() and path.is_dir():
                    folder = str(path.parent if "index" in name else path)  # an index's files lie beside it
                    ways[folder] = folder
            lines.append(f"{name} = {value}")
        configuration = self.folder / "pip.conf"
        configuration.write_text("\n".join(lines) + "\n")
        return {**ways, "/etc/pip.conf": str(configuration)}

    def _call(self, command: list[str], check: bool = True) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
        if check and result.returncode:
            raise ImageError(f"{' '.join(command)}: {result.stdout[-4000:]}{result.stderr[-4000:]}")
        return result

    def _delete(self) -> None:
        """Unmounts what is left, and deletes the folder: never through a mount, into what is mounted."""
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.folder}/"):
                self._call(["umount", "--lazy", line.split()[1]], check=False)
        left = [ln for ln in Path("/proc/mounts").read_text().splitlines() if f" {self.folder}/" in ln]
        if left:
            raise ImageError(f"still mounted, so {self.folder} stays: {left[0]}")
        shutil.rmtree(self.folder)
