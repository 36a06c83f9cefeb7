#!/usr/bin/env python3
"""Times of kvrun-desktop's frames while a long prompt is read and while two answers are generated, and pictures of the
window for the docs. Usage: frames.py KVRUN_DESKTOP [--tokens N] [--seconds S] [--model FILE] [--device NAME]
[--pictures FOLDER]
--seconds: look at the first S seconds of the reading, and wait for no answer; for machines that are slow or busy."""
import argparse, json, os, shutil
from xvfb import MODEL, ROOT, Desktop, Display

EXAMPLE = """Answers may have **bold**, *italic* and `code`:

1. numbered lines
2. and lists

```c
kvrun_session_open(&session, engine, &options);
```
> Said by somebody."""


def main():
    a = argparse.ArgumentParser()
    a.add_argument("program")
    a.add_argument("--tokens", type=int, default=9000)
    a.add_argument("--seconds", type=int, default=0)
    a.add_argument("--model", default=MODEL)
    a.add_argument("--device", default="llvmpipe")
    a.add_argument("--pictures")
    o = a.parse_args()
    display = Display()
    app = Desktop(o.program, display, o.device, o.model)
    try:
        with open(os.path.join(ROOT, "models/bundled/record40.txt")) as f:
            record = f.read()
        with open(app.path("long"), "w") as f:  # 2.59 bytes of this text are a token of the bundled model
            f.write((record * (o.tokens * 3 // len(record) + 1))[: int(o.tokens * 2.59)])
        common = ("--chat-template", "chatml", "--temp", "0", "-n", "48", "-c", str(o.tokens + 2000), "--kv", "kivi2")
        begin = ["wait loaded", "wait 1", "frames clear", "wait 3", "frames show", "paste long", "key Return", "wait reading",
                 "frames clear"]
        whole = ["wait answering 1500", "frames show", "frames clear", "wait idle", "frames show"]
        part = [f"wait {o.seconds}", "frames show"]
        out = app.run(begin + (part if o.seconds else whole) + ["dump dump", "screenshot long.png", "quit"],
                      *common, timeout=1800).splitlines()
        c = app.dump()["conversations"][0]
        if o.seconds:
            print(f"{c['read_share']:.0%} of about {o.tokens} tokens were read in {o.seconds} s")
        else:
            print(f"prompt and answer: {sum(c['tiers'])} tokens in the cache")
        for what, line in zip(("idle", "reading the prompt", "answering"), out):
            print(f"{what}: {line}")
        if o.pictures:
            take_pictures(app, o.pictures)
    finally:
        app.close()
        display.close()


def take_pictures(app, folder):
    """A conversation with all that markdown has, and the plan of a context that does not fit under every policy."""
    os.symlink(MODEL, app.path(os.path.basename(MODEL)))
    app.model = os.path.basename(MODEL)  # in its folder: a short path to see
    app.run(["wait loaded", "type Once upon a time there was a dog.", "key Return", "wait idle", "quit"],
            "--chat-template", "chatml", "--temp", "0", "-n", "60", "--kv", "zipcache,recent=32,flush=32")
    kept = os.path.join(app.path("state"), "kvrun/desktop")
    for name in os.listdir(kept):
        path = os.path.join(kept, name)
        if name.startswith("c"):
            with open(path) as f:
                text = f.read()
            j = json.loads(text)
            j["messages"][1]["content"] = EXAMPLE
            with open(path, "w") as f:
                json.dump(j, f)
    app.run(["wait loaded", "key ctrl+N", "type Tell me a story about a tree, a house and a river.", "key Return", "key ctrl+Tab",
             "type And then?", "key Return", "wait idle", "wait 0.2", "screenshot chat.png", "quit"],
            "--chat-template", "chatml", "--temp", "0", "-n", "60", "--kv", "zipcache,recent=32,flush=32")
    app.run(["wait loaded", "key ctrl+N", "key ctrl+,", "wait planned", "wait 0.5", "screenshot plan.png", "quit"],
            "--chat-template", "chatml", "-c", "8M", "--kv", "kivi4")
    for name in ("chat.png", "plan.png", "long.png"):
        shutil.copy(app.path(name), os.path.join(folder, name))


if __name__ == "__main__":
    main()
