#!/usr/bin/env python3
"""Runs tests with pytest against the package in a build folder: run.py BUILD NAME. Exit code 77: skipped."""
import os
import sys

FILES = {"python": ["python", "python_arguments", "python_async", "python_bindings", "python_ends",
                    "python_program"],
         "python_ray": ["python_ray"]}


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
    here = os.path.dirname(os.path.abspath(__file__))
    return pytest.main(["-q", "-p", "no:cacheprovider", *(os.path.join(here, f"test_{x}.py") for x in FILES[name])])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
