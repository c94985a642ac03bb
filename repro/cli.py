"""The command line: subcommands stand in :mod:`repro.commands`; here every expected error becomes one line.

Exit codes: 0 done (also: stopped as asked, to be resumed), 2 the input is wrong, 3 it ran and failed, 130 interrupted.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

from repro import progress
from repro.errors import InputError, RunFailed, RunInterrupted


def main(arguments=None):
    """Entry point of the ``repro`` script; every expected error becomes one line and an exit code."""
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        if arguments[:1] == ["train"]:
            # A warning that comes before anybody can act on it is kept for the handlers of the launcher or rank.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        _open_standard_files()
        _run(arguments)
    except KeyboardInterrupt as error:
        _fail(str(error) or "interrupted", 130)


def _run(arguments):
    import typer  # here, where Ctrl-C during half a second of imports is one line, too

    from repro.commands import job, preflight, projecting, running  # noqa: F401  register their subcommands
    from repro.commands.shared import app

    try:
        _require_folder()
        code = app(args=_arguments(arguments), standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe or a full disk still has an answer
        sys.exit(code if isinstance(code, int) else 0)
    except InputError as error:
        _fail(error, 2)
    except RunFailed as error:
        _fail(error, 3)
    except (RunInterrupted, typer.Abort) as error:
        _fail(error if str(error) else "interrupted", 0 if getattr(error, "resumable", False) else 130)
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except SystemExit as end:
        sys.exit(0 if end.code == 1 else end.code)  # 1 is what click and rich end with when the reader has gone
    except OSError as error:
        _drop_output()
        _fail(": ".join(str(part) for part in (error.strerror or error, error.filename) if part), 3)
    except Exception as error:
        # typer carries its own copy of click, so its usage errors are known by what they can do
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        _fail(message, 2) if message else sys.exit(0)  # no arguments at all: the help has been printed


def _open_standard_files():
    """Whatever of 0, 1 and 2 the caller has closed leads nowhere, not into the next file that is opened."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _require_folder():
    try:
        Path.cwd()
    except OSError:
        raise InputError("the current folder has been removed; change to one that exists") from None


def _drop_output():
    # Python flushes what is left when it ends, and would complain a second time
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _arguments(arguments):
    if arguments[:1] == ["run"]:
        from repro.notebook.arguments import join

        return join(arguments)  # papermill's ``-p NAME VALUE``, which typer cannot take
    from repro.commands import job

    return job.arguments(arguments) if arguments[:1] == ["job"] else arguments


def _fail(text, code):
    # one line whatever a path, a value or a rank's error holds: line ends and escapes are shown, not obeyed
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    progress.say(f"repro: {line}")
    sys.exit(code)
