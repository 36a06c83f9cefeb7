#!/usr/bin/env python3
"""kvrun serve: conversations kept by name across restarts, its Unix socket, logprobs, slots.
Usage: test_serve_sessions.py KVRUN [LIBRARY WITH A BLOCKING fsync()]."""
import contextlib, http.client, json, math, os, shutil, signal, socket, stat, subprocess, sys, tempfile, threading, time
from serving import END, MODEL, SLOW, WINDOWS, Server, check, equal, finish, posix, until

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ASK = {"role": "user", "content": "The code of Anna is 4711. The code of Ben is 1234. What is the code of Anna?"}


def chat(messages, **more):
    return {"messages": messages, "temperature": 0, "max_tokens": 24, "ignore_eos": True, **more}


def kept_conversations(folder):
    """Two turns with a restart in between equal two turns without one; the second turn reads only new tokens."""
    messages = [ASK]
    for kv in ("fp16", "kivi2,recent=32"):
        name = "Anna." + kv[:4]
        options = ("--chat-template", "chatml", "--sessions", folder, "--kv", kv)
        with Server(*options) as s:
            first = s.post(CHAT, chat([ASK], session=name)).json()
            equal(f"{kv}: the answer says that it is kept", (first["kv"]["session"], first["kv"]["kept"]), (name, True))
            answer = first["choices"][0]["message"]
            turn = [ASK, answer, {"role": "user", "content": "And of Ben?"}]
            want = s.post(CHAT, chat(turn)).json()
            equal(f"{kv}: the list", [c["id"] for c in s.get("/sessions").json()["data"]], [name])
            s.stop(signal.SIGKILL if kv == "fp16" else END)  # nothing is written at the end
        path = os.path.join(folder, name + ".kvs")
        if not WINDOWS:
            equal("the folder is its owner's", stat.S_IMODE(os.stat(folder).st_mode), 0o700)
        with Server(*options) as s:
            equal(f"{kv}: what was said", s.get("/sessions/" + name).json()["messages"], [ASK, answer])
            second = s.post(CHAT, chat(turn, session=name)).json()
            held = second["usage"]["prompt_tokens_details"]["cached_tokens"]
            check(f"{kv}: the second turn is not read from its beginning", held >= first["usage"]["prompt_tokens"],
                  second["usage"])
            equal(f"{kv}: it is answered as without a restart", second["choices"][0]["message"],
                  want["choices"][0]["message"])
            equal(f"{kv}: both turns are kept", len(s.get("/sessions/" + name).json()["messages"]), 4)
            read = s.post(CHAT, chat([ASK], session="read" + name, max_tokens=0))
            equal("a prompt that is only read", (read.status, s.get("/sessions/read" + name).json()["messages"]),
                  (200, [ASK]))
            s.ask("DELETE", "/sessions/read" + name)
            equal("one that is removed", (s.ask("DELETE", "/sessions/" + name).status, os.path.exists(path)),
                  (200, False))
            equal("is no more", s.get("/sessions/" + name).status, 404)


def damaged_and_odd(folder):
    """T43, T61 damaged conversations, and invalid names"""
    with Server("--chat-template", "chatml", "--sessions", folder) as s:
        plain = s.post(CHAT, chat([ASK])).json()["choices"][0]["message"]
        s.post(CHAT, chat([ASK], session="b"))
        s.stop()
    path = os.path.join(folder, "b.kvs")
    with open(path, "r+b") as f:
        f.seek(300), f.write(b"\x7f" * 40)
    with Server("--chat-template", "chatml", "--sessions", folder) as s:
        r = s.post(CHAT, chat([ASK], session="b")).json()
        equal("T43: a damaged conversation is read again", (r["choices"][0]["message"], r["kv"]["kept"]), (plain, True))
        secret = os.path.join(folder, "secret")
        with open(secret, "w") as f:
            f.write("secret")
        other = os.path.join(folder, "other")  # a valid conversation that a link must not reach
        shutil.copy(path, other)
        link = [] if WINDOWS else ["link"]  # Wine shows a link as the file
        if link:
            os.symlink(other, os.path.join(folder, "link.kvs"))
        os.mkdir(os.path.join(folder, "folder.kvs"))
        for name in ("../b", "/etc/passwd", "a/b", ".", "..", ".hidden", "", "a\0b", "a b", "é", "x" * 65,
                     "folder", "b.kvs/", *link):
            r = s.post(CHAT, chat([ASK], session=name))
            check(f"T61: session {name!r}", (r.status == 400 and r.error()) or (name == "" and r.status == 200),
                  (r.status, r.body))
        for path in ("/sessions/../b", "/sessions/%2e%2e", "/sessions/folder", "/sessions/none",
                     *("/sessions/" + name for name in link)):
            check(f"T61: {path}", s.get(path).status in (400, 404))
            check(f"T61: DELETE {path}", s.ask("DELETE", path).status in (400, 404))
        for name in ("folder", "none", *link):
            r = s.post("/sessions/" + name, {"pinned": True})
            check(f"T61: pin {name}", r.status == 404 and r.error(), (r.status, r.body))
        equal("nothing was touched", (open(secret).read(), sorted(os.listdir(folder))),
              ("secret", ["b.kvs", "folder.kvs", *(name + ".kvs" for name in link), "other", "secret"]))
        check("links and folders are not listed", [c["id"] for c in s.get("/sessions").json()["data"]] == ["b"])
        long = s.connect()
        long.request("POST", CHAT, json.dumps(chat([ASK], session="b", max_tokens=100000, ignore_eos=True)))
        check("an answer is under way", s.wait_for("kvrun_answers_active", 1))
        r = s.post(CHAT, chat([ASK], session="b"))
        check("two requests for one conversation", r.status == 409 and r.error(), (r.status, r.body))
        slots, until = [], time.monotonic() + 10
        while not slots and time.monotonic() < until: # listed from the answer's first step on
            slots = s.slots()
        check("slots", len(slots) == 1 and slots[0]["session"] == "b" and slots[0]["kv"]["f16_bytes"] > 0, slots)
        check("a policy that fetches nothing says nothing of it", "fetch" not in slots[0], slots)
        long.close()
        check("it ends with its client", s.wait_for("kvrun_answers_active", 0, 10))
        equal("and the conversation can go on", s.post(CHAT, chat([ASK], session="b")).status, 200)
        equal("no slots", s.slots(), [])


def little_room(folder):
    """Conversations beyond --sessions-max: the one saved longest ago is removed; pinned ones and those in use stay"""
    def ids(s):
        return [c["id"] for c in s.get("/sessions").json()["data"]]

    def save(s, name, **more):
        return s.post(CHAT, chat([ASK], session=name, **more))

    options = ("--chat-template", "chatml", "--sessions", folder, "--sessions-max")
    with Server(*options, "2") as s:
        for name in ("a", "b", "c"):
            equal(f"{name} is kept", save(s, name).json()["kv"]["kept"], True)
        equal("two are left", ids(s), ["b", "c"])
        save(s, "b")
        save(s, "d")
        equal("the one that was saved longest ago has gone", ids(s), ["b", "d"])
        equal("pinned", s.post("/sessions/b", {"pinned": True}).json(), {"id": "b", "pinned": True})
        for body in ({}, {"pinned": 1}, {"pinned": None}, []):
            equal(f"pinned by {body}", s.post("/sessions/b", body).status, 400)
    with Server(*options, "2") as s:
        equal("pins outlive the server", [c["pinned"] for c in s.get("/sessions").json()["data"]], [True, False])
        save(s, "e")
        equal("what is pinned stays", ids(s), ["b", "e"])
        s.post("/sessions/e", {"pinned": True})
        r = save(s, "f")
        check("nothing can go", r.status == 507 and r.json()["error"]["param"] == "session" and r.error(),
              (r.status, r.body))
        equal("one that is there goes on", save(s, "e").status, 200)
        equal("its pin is taken off", s.post("/sessions/e", {"pinned": False}).json()["pinned"], False)
        long = s.connect()
        long.request("POST", CHAT, json.dumps(chat([ASK], session="e", max_tokens=100000)))
        check("it is in use", s.wait_for("kvrun_answers_active", 1))
        equal("what is in use stays", save(s, "f").status, 507)
        long.close()
        check("it ends", s.wait_for("kvrun_answers_active", 0))
        equal("then it goes", (save(s, "f").status, ids(s)), (200, ["b", "f"]))
        s.ask("DELETE", "/sessions/b")
        equal("nothing is left of one that is removed", sorted(os.listdir(folder)), ["f.kvs"])
        size = s.get("/sessions").json()["data"][0]["bytes"]
    with Server(*options, str(size * 5 // 2)) as s:
        for name in ("g", "h", "i"):
            save(s, name)
        equal("a limit in bytes", ids(s), ["h", "i"])
    with Server(*options, "64K") as s:
        r = save(s, "j", max_tokens=200).json()
        check("one that is larger than all may be is not kept", r["kv"]["kept"] is False
              and "--sessions-max" in r["kv"]["not_kept"], r["kv"])
        check("nor left behind", "j" not in ids(s), ids(s))


def lost_folder(folder):
    """A conversation that cannot be written: the answer says so, without naming folders of this machine"""
    with Server("--chat-template", "chatml", "--sessions", folder) as s:
        s.post(CHAT, chat([ASK], session="a"))
        with open(os.path.join(folder, "a.kvs"), "r+b") as f:
            f.truncate(100)
        r = s.get("/sessions/a")
        check("one that is damaged", r.status == 400 and "a" in r.error() and "/" not in r.error(), r.body)
        shutil.rmtree(folder)
        r = s.post(CHAT, chat([ASK], session="b"))
        check("it is answered", r.status == 200 and r.json()["kv"]["kept"] is False, r.body)
        check("why it is not kept", "'b'" in r.json()["kv"]["not_kept"] and "/" not in r.json()["kv"]["not_kept"],
              r.body)


def slow_disk(folder):
    """A slow disk delays only the answer whose conversation is written to it"""
    fifo = os.path.join(folder, "fifo")
    os.mkfifo(fifo)
    env = {"LD_PRELOAD": os.path.abspath(sys.argv[2]), "KVRUN_TEST_FSYNC": fifo}
    with Server("--chat-template", "chatml", "--sessions", os.path.join(folder, "kept"), "--parallel", "2",
                env=env) as s:
        found = []
        t = threading.Thread(target=lambda: found.append(s.post(CHAT, chat([ASK], session="a"))))
        t.start()
        check("a conversation is being saved", until(lambda: [a["state"]
                                                              for a in s.slots()] == ["saving"]))
        for i in range(3):
            r = s.post(CHAT, chat([ASK], stream=i == 1))
            equal(f"others are answered meanwhile, {i}", r.status, 200)
        equal("a second request for it", s.post(CHAT, chat([ASK], session="a")).status, 409)
        equal("its client does not have the end", found, [])
        with open(fifo, "wb", buffering=0) as f:
            f.write(b"x" * 64)
            t.join()
        equal("it has it once the file is on the disk", found[0].json()["kv"]["kept"], True)
        equal("the slot is free", s.slots(), [])


def ended_while_saving(folder):
    """SIGTERM while a conversation is saved and another waits for that: both are kept"""
    fifo, kept = os.path.join(folder, "fifo2"), os.path.join(folder, "kept2")
    os.mkfifo(fifo)
    options = ("--chat-template", "chatml", "--sessions", kept, "--parallel", "2", "--drain", "0")
    with Server(*options, env={"LD_PRELOAD": os.path.abspath(sys.argv[2]), "KVRUN_TEST_FSYNC": fifo}) as s:
        def ask(name):
            with contextlib.suppress(OSError, http.client.HTTPException):
                s.post(CHAT, chat([ASK], session=name))

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b")]
        for t in threads:
            t.start()
        check("one is saved, one waits for that", until(lambda: [a["state"] for a in s.slots()] == ["saving"] * 2))
        s.process.send_signal(END)
        for t in threads:
            t.join()
        time.sleep(1)  # what answers requests is gone by now
        with open(fifo, "wb", buffering=0) as f:
            f.write(b"x" * 64)
            equal("it ends", s.process.wait(60 * SLOW), 0)
    with Server(*options) as s:
        for name in ("a", "b"):
            said = s.get("/sessions/" + name).json().get("messages", [])
            equal(f"conversation {name} is kept", [m["role"] for m in said], ["user", "assistant"])


def unix_socket(folder):
    path = os.path.join(folder, "kvrun.sock")
    with Server("--chat-template", "chatml", unix=path) as s:
        equal("its file is its owner's", stat.S_IMODE(os.stat(path).st_mode), 0o600)
        equal("requests", s.post(COMPLETION, {"prompt": "a", "max_tokens": 2}).status, 200)
        equal("any Host", s.get("/health", Host="anything").status, 200)
        r = subprocess.run([sys.argv[1], "serve", "/nonexistent", "--unix", path], capture_output=True, timeout=60)
        check("a socket that is in use", r.returncode == 5 and path.encode() in r.stderr, r)
        equal("it ends", (s.stop(), os.path.exists(path)), (0, False))
    with Server(unix=path) as s:
        s.stop(signal.SIGKILL)
    with Server(unix=path) as s:  # a socket left behind is replaced
        equal("after a kill", s.get("/health").status, 200)
    os.unlink(path) if os.path.exists(path) else None
    with open(path, "w") as f:
        f.write("mine")
    r = subprocess.run([sys.argv[1], "serve", "/nonexistent", "--unix", path], capture_output=True, timeout=60)
    check("a file that is no socket stays", r.returncode == 5 and open(path).read() == "mine", r)


def logprobs(s):
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": 3}
    r = s.post(COMPLETION, body).json()["choices"][0]
    p = r["logprobs"]
    equal("one entry a token", [len(p[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")],
          [6] * 4)
    check("the greedy one is the likeliest", all(own == max(top.values()) and len(top) == 3 for own, top in
                                                zip(p["token_logprobs"], p["top_logprobs"])), p)
    check("they are logarithms of probabilities", all(sum(map(math.exp, top.values())) <= 1.0001 and own < 0
                                                      for own, top in zip(p["token_logprobs"], p["top_logprobs"])), p)
    wide = s.post(COMPLETION, {**body, "temperature": 2, "seed": 3, "top_k": 0, "top_p": 1,
                               "min_p": 0}).json()["choices"][0]
    check("chosen and likeliest differ where it is hot", any(own < max(top.values()) for own, top in zip(
        wide["logprobs"]["token_logprobs"], wide["logprobs"]["top_logprobs"])), wide)
    whole = s.post(COMPLETION, {**body, "max_tokens": 24}).json()["choices"][0]["text"]
    for length in (1, 2, 4):  # a stop string in the middle of the answer, of one token or of several
        at = len(whole) // 2
        asked = {**body, "max_tokens": 24, "stop": [whole[at:at + length]]}
        c = s.post(COMPLETION, asked).json()["choices"][0]
        tokens = c["logprobs"]["tokens"] if c["logprobs"] else []
        check("the tokens are those of the text", "".join(tokens).startswith(c["text"]), (tokens, c["text"]))
        check("and none of the stop string", not tokens or len("".join(tokens[:-1])) < len(c["text"]), (tokens, c))
        events = s.post(COMPLETION, {**asked, "stream": True}).events()
        streamed = [t for v in events for e in v["choices"] for t in ((e.get("logprobs") or {}).get("tokens") or [])]
        equal("also of a stream", streamed, tokens)
    first = {**body, "prompt": "", "max_tokens": 40}  # the answer's first token adds no space
    c = s.post(COMPLETION, first).json()["choices"][0]
    tokens = c["logprobs"]["tokens"]
    ends = [len("".join(tokens[:i + 1]).lstrip()) for i, t in enumerate(tokens[:-1]) if len(t) == 1]
    check("there are tokens of one byte", ends, tokens)
    for end in ends:
        part = s.post(COMPLETION, {**first, "stop": [c["text"].lstrip()[end:end + 8]]}).json()["choices"][0]
        said = "".join(part["logprobs"]["tokens"]).lstrip()
        check("no token is missing before a stop string", said.startswith(part["text"].lstrip()), (said, part["text"]))
    wanted = {"logprobs": True, "top_logprobs": 2,
              "cache_prompt": False}  # reading one token of a prompt again has other rounding
    whole = s.post(CHAT, chat([ASK], **wanted)).json()["choices"][0]
    entries = whole["logprobs"]["content"]
    equal("a chat's", (len(entries), {len(e["top_logprobs"]) for e in entries}), (24, {2}))
    equal("its bytes are its text", b"".join(bytes(e["bytes"]) for e in entries).decode().strip(),
          whole["message"]["content"].strip())
    events = s.post(CHAT, chat([ASK], **wanted, stream=True)).events()
    streamed = [e for v in events for c in v["choices"] for e in ((c.get("logprobs") or {}).get("content") or [])]
    equal("a stream's are the same", streamed, entries)
    check("none unless asked for", s.post(CHAT, chat([ASK])).json()["choices"][0]["logprobs"] is None)


def json_objects(s):
    """T41 an answer constrained to a JSON object is one, or the beginning of one if its tokens ran out"""
    ended = 0
    for seed in range(6):
        body = chat([ASK], response_format={"type": "json_object"}, temperature=1.0, seed=seed, max_tokens=200,
                    ignore_eos=False)
        c = s.post(CHAT, body).json()["choices"][0]
        text = c["message"]["content"]
        check("it begins as one", text.lstrip().startswith("{"), text)
        if c["finish_reason"] == "stop":
            ended += 1
            check("it is one", isinstance(json.loads(text), dict), text)
    print(f"{ended} of 6 JSON answers came to their end")
    a = s.post(CHAT, body)
    equal("a stream says the same", "".join(c["delta"].get("content") or ""
                                            for e in s.post(CHAT, {**body, "stream": True}).events()
                                            for c in e["choices"]), a.json()["choices"][0]["message"]["content"])


def fetching(folder):
    """The slot shows what an answer fetches from host memory; the file for data over the budget has no name."""
    kv = "kivi2,fetch=8,recent_keep=8,flush=32"
    with Server("--chat-template", "chatml", "--host-budget", "1K", "--offload-dir", folder, "--ctx-size", "600") as s:
        long = s.connect()
        long.request("POST", CHAT, json.dumps(chat([ASK], kv=kv, max_tokens=500)))
        check("an answer is under way", s.wait_for("kvrun_answers_active", 1))
        end, fetch = time.monotonic() + 60, {}
        while time.monotonic() < end and not fetch.get("steps"):
            fetch = (s.slots() or [{}])[0].get("fetch", {})
        check("its slot says what it fetches", fetch.get("tokens") == 8 and 0 < fetch["attention_in_f16"] <= 1.001,
              fetch)
        check("from a file", fetch.get("host_bytes") == fetch.get("file_bytes") != 0, fetch)
        if not WINDOWS:  # there it has one until it is closed
            equal("which has no name", os.listdir(folder), [])
        long.close()
    check("nothing of it is left", until(lambda: os.listdir(folder) == [], 10))
    r = subprocess.run([sys.argv[1], "serve", MODEL, "--device", "cpu", "--port", "0", "--offload-dir", "/nonexistent"],
                       capture_output=True, timeout=60)
    check("a folder that is not there", r.returncode == 5 and b"--offload-dir /nonexistent" in r.stderr, r)


def main():
    with tempfile.TemporaryDirectory() as folder:
        kept_conversations(os.path.join(folder, "a"))
        damaged_and_odd(os.path.join(folder, "b"))
        little_room(os.path.join(folder, "c"))
        lost_folder(os.path.join(folder, "d"))
        if len(sys.argv) > 2:
            os.mkdir(os.path.join(folder, "e"))
            posix(slow_disk, os.path.join(folder, "e"))
            posix(ended_while_saving, os.path.join(folder, "e"))
        else:
            print("skipped: a slow disk; no library was given")
        posix(unix_socket, folder)
        os.mkdir(os.path.join(folder, "f"))
        fetching(os.path.join(folder, "f"))
    with Server("--chat-template", "chatml") as s:
        logprobs(s)
        json_objects(s)
        r = s.post(CHAT, chat([ASK], session="x"))
        check("without --sessions", r.status == 400 and r.json()["error"]["param"] == "session", r.body)
    finish()


main()
