"""The program `fcil`, also as `python -m fcil`."""

import sys

from fcil.core.allocator import restart_with_allocator


def main() -> None:
    """Run the command line; Ctrl-C while its modules are read, which takes seconds, ends it as at any other time."""
    try:
        from fcil.cli.app import main as command_line  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


def start() -> None:
    """Run the command line in a process of its own, with a faster allocator where there is one."""
    restart_with_allocator(sys.argv[1:])
    main()


if __name__ == "__main__":
    start()
