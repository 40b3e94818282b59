"""`python -m fcil` is the command line."""

from fcil.cli import main

if __name__ == "__main__":
    main()
