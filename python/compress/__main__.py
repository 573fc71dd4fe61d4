"""The command: `compress`, or `python -m compress`."""

import sys

from ._compress import main as run


def main() -> int:
    """Runs the command line of this process, and returns the exit code."""
    return run(["compress", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
