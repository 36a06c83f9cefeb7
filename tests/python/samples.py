"""What tests of the Python package ask the bundled model for."""
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "models", "bundled"))
import make_record  # noqa: E402

MODEL = os.path.join(ROOT, "models", "bundled", "recall-4m-f16.gguf")
ONCE = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 12}


def record(lines=8, seed=3):
    """A record of named lines with a question about one of them, and its answer: what the bundled model can do."""
    text, _, answer = make_record.record(lines, seed)
    return text, answer
