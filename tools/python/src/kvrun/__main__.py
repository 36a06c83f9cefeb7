"""python -m kvrun: runs the program."""
import os
import sys

from ._program import program


def main() -> None:
    path = program()
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"error: kvrun's program cannot be started: {path}: {error.strerror}")


if __name__ == "__main__":
    main()
