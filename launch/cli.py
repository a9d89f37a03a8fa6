"""Run the `maskmill` command.

Each verb parses, builds, calls. Anything a person can put right is one line, exit 2. Imports no torch: the environment
that names the caches has to be there before it, in every rank.
"""

import os
import sys
import traceback
from types import TracebackType

import typer

import launch.verbs  # noqa: F401
from data_pipeline.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError, printable, shortened
from data_pipeline.io.caches import compile_caches
from launch.app import address_space, app
from launch.ranks import end_with_supervisor
from pretrain.distributed.launch_env import first_rank

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
