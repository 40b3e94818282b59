"""The program `fcil`, also as `python -m fcil`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while its modules are read, which takes seconds, ends it as at any other time."""
    try:
        from fcil.cli.app import main as command_line  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
