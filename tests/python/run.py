#!/usr/bin/env python3
"""Runs test_NAME.py with pytest against the package in a build folder: run.py BUILD NAME. Exit code 77: skipped."""
import os
import sys


def main(build, name):
    sys.path.insert(0, os.path.join(build, "python"))
    os.environ["PYTHONPATH"] = sys.path[0]  # of the interpreters that the tests start
    wanted = ["cffi", "numpy", "pytest"] + (["ray", "ray.serve"] if name == "python_ray" else [])
    for module in wanted:
        try:
            __import__(module)
        except ImportError as error:
            print(f"skipped: {error} ({'pip install ray[serve]' if 'ray' in module else 'tools/packages.sh tests'})")
            return 77
    import pytest
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"test_{name}.py")
    return pytest.main(["-q", "-p", "no:cacheprovider", file])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
