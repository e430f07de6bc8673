"""`python -m kvark` and the console script: the `kvark` command."""

import signal
import sys

from ._kvark import run_command


def main() -> None:
    """Runs the command with the program's arguments."""
    # The command has its own answer to Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run_command(["kvark", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
