"""Run the `maskmill` command, and choose where torch.compile and Triton keep what they compile.

Each verb parses, builds, calls. Anything a person can put right is one line, exit 2. Imports no torch: the environment
that names the caches has to be there before it, in every rank.
"""

import getpass
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import typer

import launch.verbs  # noqa: F401
from data_pipeline.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError, printable, shortened
from data_pipeline.io.files import choose_cache, not_private, own_temporary_folder, user_caches
from launch.app import address_space, app
from launch.ranks import end_with_supervisor
from pretrain.distributed.launch_env import first_rank

# Choose the folders of compiled code where the libraries' own choice would be lost or raise. torch's Inductor takes a
# folder of the user's name in the folder for temporary files, Triton one below HOME. In a container both end with it,
# so that every start compiles anew; and torch 2.11's Inductor raises KeyError where the container runs as a number that
# /etc/passwd lacks. So both get a folder beside numba's (NUMBA_CACHE_DIR, which the images set), or one of the user's
# own. On any other machine their own choices stay, unless others may write there: what is compiled is executed
# (data_pipeline/io/files.py).


CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""The variables that name the caches, and the folder of each."""


def compile_caches(
    environment: Mapping[str, str], say: Callable[[str], None] | None = None
) -> dict[str, str]:
    """Return the variables of CACHES to add to `environment`, or to change in it: none where its own choice, or the
    library's, will do. A choice into which others may write is changed, with a line to `say`. Creates nothing."""
    found: dict[str, str] = {}
    lines: list[str] = []

    def choose(name: str, theirs: Path | None, places: Iterable[Path]) -> None:
        reason = not_private(theirs) if theirs else ""
        if theirs and not reason:
            return
        chosen = choose_cache(places)
        if chosen is not None:
            found[name] = str(chosen.folder)
            why = f"not in {theirs}: {reason}" if reason else chosen.why
            lines.extend([f"compiled code is kept in {chosen.folder}, {why}"] if why else [])

    if numba := environment.get("NUMBA_CACHE_DIR"):
        elsewhere = {key: value for key, value in environment.items() if key != "NUMBA_CACHE_DIR"}
        choose("NUMBA_CACHE_DIR", Path(numba), (folder / "numba" for folder in _places(elsewhere)))
    for name, own in CACHES.items():
        places = _places({**environment, **found})
        choose(name, _own_choice(name, environment), (folder / own for folder in places))
    if lines and say:
        say(lines[0])  # the others have the same reason
    return found


def _own_choice(name: str, environment: Mapping[str, str]) -> Path | None:
    """Return the folder that the environment names, or that the library takes where it is not lost with a container
    and its user has a name; else None."""
    if environment.get(name):
        return Path(environment[name])
    if environment.get("NUMBA_CACHE_DIR") or not _has_name():
        return None
    if name == "TORCHINDUCTOR_CACHE_DIR":
        return Path(tempfile.gettempdir()) / f"torchinductor_{re.sub(_NO_PATH, '_', getpass.getuser())}"
    return Path(environment.get("HOME") or os.path.expanduser("~")) / ".triton" / "cache"


_NO_PATH = r'[\\/:*?"<>|]'
"""What Inductor replaces in a user's name."""


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield where the caches may be, the best first: as data_pipeline/jit.py has it, but for the modules' own
    folder."""
    if named := environment.get("NUMBA_CACHE_DIR"):
        yield Path(named).absolute().parent
    yield from user_caches(environment)
    yield own_temporary_folder()


def _has_name() -> bool:
    """Return whether this process's user has a name, as getpass finds it for Inductor."""
    try:
        return bool(getpass.getuser())
    except (KeyError, OSError):
        return False


# Run a verb, and turn what goes wrong into a line and an exit code.


def main() -> None:
    """Run the command line: exit code 2 and one line for what a person can fix, 130 after Ctrl-C."""
    sys.excepthook = _show_traceback
    end_with_supervisor(os.environ)
    os.environ.update(
        compile_caches(os.environ, say=_say_error)
    )  # of this process, and of the ranks that it starts
    if (
        "RANK" in os.environ
    ):  # DeepSpeed's launcher puts this before the verb; the environment says it as well
        sys.argv = [argument for argument in sys.argv if not argument.startswith("--local_rank")]
    try:
        app(prog_name="maskmill", standalone_mode=False)
    except UserError as error:
        fail(str(error), EXIT_USER_ERROR)
    except typer.Exit as error:
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        fail("interrupted" if first_rank() else "", EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno is None:
            raise
        name = f"{error.filename}: " if error.filename else ""
        fail(f"{name}{error.strerror}", EXIT_USER_ERROR)
    except (MemoryError, SystemError) as error:
        limit = address_space()
        if isinstance(error, SystemError) and not limit:  # libraries raise it too where memory ends
            raise
        of = f", of which `ulimit -v` allows {limit / 1e6:,.0f} MB" if limit else ""
        fail(
            f"there is not enough memory{of} (lower data.workers or sizes, or run it on a larger machine)",
            EXIT_USER_ERROR,
        )
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's own usage errors
        if usage is None:
            raise
        context = getattr(error, "ctx", None)
        fail(f"{usage()} (see `{context.command_path if context else 'maskmill'} --help`)", EXIT_USER_ERROR)


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what Python prints of an error that nobody foresaw, with control characters escaped."""
    text = "".join(traceback.format_exception(kind, error, trace))
    print(printable(text), end="", file=sys.stderr, flush=True)


def _say_error(line: str) -> None:
    print(printable("\n".join(map(shortened, f"maskmill: {line}".split("\n")))), file=sys.stderr, flush=True)


def fail(line: str, code: int) -> None:
    """Prints `maskmill: line` to stderr, if there is something to say, and ends the process."""
    if line:
        _say_error(line)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
