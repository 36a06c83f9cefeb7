#!/usr/bin/env python3
"""Times of kvrun-desktop's frames while a long prompt is read and while it is answered, and the memory of the window
without a model. Usage: frames.py KVRUN_DESKTOP [--tokens N] [--seconds S] [--model FILE] [--device NAME]
--seconds: look at the first S seconds of the reading, and wait for no answer; for machines that are slow or busy."""
import argparse, os, time
from xvfb import MODEL, ROOT, Desktop, Display

def memory(app):
    """Prints what the window takes on its start page."""
    app.model = None
    process = app.start(["wait models", "wait 1", "dump at_start", "wait 60", "quit"], "--device", None)
    while not os.path.exists(app.path("at_start")) and process.poll() is None:
        time.sleep(0.1)
    with open(f"/proc/{process.pid}/smaps_rollup") as f:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in f if line.endswith("kB\n")}
    process.kill()
    process.communicate()
    print(f"memory without a model: resident {kib['Rss'] / 1024:.0f} MiB, of them alone {kib['Pss'] / 1024:.0f} MiB")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("program")
    a.add_argument("--tokens", type=int, default=9000)
    a.add_argument("--seconds", type=int, default=0)
    a.add_argument("--model", default=MODEL)
    a.add_argument("--device", default="llvmpipe")
    o = a.parse_args()
    display = Display()
    app = Desktop(o.program, display, o.device, o.model)
    try:
        with open(os.path.join(ROOT, "models/bundled/record40.txt")) as f:
            record = f.read()
        with open(app.path("long"), "w") as f:  # 2.59 bytes of this text are a token of the bundled model
            f.write((record * (o.tokens * 3 // len(record) + 1))[: int(o.tokens * 2.59)])
        common = ("--chat-template", "chatml", "--temp", "0", "-n", "48", "-c", str(o.tokens + 2000), "--kv", "kivi2")
        begin = ["wait loaded", "paste long", "wait 1", "key Return", "wait reading", "frames clear"]
        whole = ["wait answering 1500", "frames show", "frames clear", "wait idle", "frames show"]
        part = [f"wait {o.seconds}", "frames show"]
        out = app.run(begin + (part if o.seconds else whole) + ["dump dump", "quit"],
                      *common, timeout=1800).splitlines()
        c = app.dump()["conversations"][0]
        if o.seconds:
            print(f"{c['read_share']:.0%} of about {o.tokens} tokens were read in {o.seconds} s")
        else:
            print(f"prompt and answer: {sum(c['tiers'])} tokens in the cache")
        memory(app)
        for what, line in zip(("reading the prompt", "answering"), out):
            print(f"{what}: {line}")
    finally:
        app.close()
        display.close()


if __name__ == "__main__":
    main()
