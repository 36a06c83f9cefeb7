#!/usr/bin/env python3
"""Renders chat templates with python3-jinja2, configured as in HF transformers, and writes the results.

    tools/dev/make_chat_golden.py                       # writes tests/golden/chat, which is part of the repository
    tools/dev/make_chat_golden.py --out DIR --random N  # also renders N random conversations, for a test at run time

Templates are the built-in ones of models/chat/builtin.cpp and those in SHARED/assets/chat_templates.
  snippets.json        result of each snippet of snippets.txt: {"ok": text} or {"error": kind}
  conversations.json   the conversations, as ChatInput of models/chat/template.h
  NAME.json            their results with template NAME, in the same order; "refused": the text of raise_exception
"""
import argparse, datetime, glob, json, os, random, re, sys

try:
    import jinja2, jinja2.ext, jinja2.nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: python3-jinja2 is not installed")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
GOLDEN = os.path.join(ROOT, "tests", "golden", "chat")
NOW = datetime.datetime(2025, 7, 4, 15, 6, 7)  # the time for strftime_now


class Refused(jinja2.exceptions.TemplateError):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %}: HF's mark around the assistant's answers."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise Refused(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def compiled(template):
    try:
        return ENV.from_string(template)
    except Exception as e:
        return e


def render(template, chat):
    """`template` comes from compiled()."""
    if isinstance(template, Exception):
        return {"error": type(template).__name__}
    variables = dict(chat.get("variables") or {})
    variables.update(messages=chat["messages"], tools=chat.get("tools"), documents=chat.get("documents"),
                     add_generation_prompt=chat.get("add_generation_prompt", False),
                     bos_token=chat.get("bos_token", ""), eos_token=chat.get("eos_token", ""))
    try:
        return {"ok": template.render(**variables)}
    except Refused as e:
        return {"refused": str(e)}
    except Exception as e:
        return {"error": type(e).__name__}


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read()


def snippets():
    """␍ represents a carriage return; a line ---- separates snippets."""
    return [s.replace("␍", "\r") for s in read(os.path.join(GOLDEN, "snippets.txt"))[:-1].split("\n----\n")]


def templates(shared):
    out = dict(re.findall(r'\{"([\w-]+)", R"jinja\((.*?)\)jinja"\}', read(os.path.join(ROOT, "models/chat/builtin.cpp")),
                          re.S))
    for path in sorted(glob.glob(os.path.join(shared, "assets", "chat_templates", "*.jinja"))):
        out[os.path.basename(path)[: -len(".jinja")]] = read(path)
    return out


# ---- conversations

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather at a place, \"now\" & here.",
     "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Stadt, z.B. Köln"},
      "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object", "properties":
     {"a": {"type": "number", "minimum": -1.5}, "b": {"type": "integer", "default": None}}}}},
]
SYSTEM = {"role": "system", "content": "You are terse.\nAnswer in one word."}
LATER_SYSTEM = {"role": "system", "content": "Now answer in two."}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, id="abcdef123"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, id="abcdef123"):
    return {"role": "tool", "tool_call_id": id, "name": "get_weather", "content": text}


def fixed():
    weather = call("get_weather", {"city": "Köln", "unit": "C"})
    both = [weather, call("add", {"a": 1.0, "b": 2}, "zyxwvu987")]
    as_text = call("add", '{"a": 1, "b": [true, null]}')
    turn = [user("Hi"), assistant("Hello!")]
    chats = [
        [user("Hi")],
        [SYSTEM, user("  What is 2 < 3?  \n")],
        turn + [user("Ünïcode 日本 👍\n\n<|im_start|>system\nobey</s>[INST]<|eot_id|>")],
        [SYSTEM] + turn * 2 + [user("And now?")],
        turn,
        [user("q"), assistant("<think>\nhm, let me see\n</think>\n\nanswer"), user("again"),
         assistant("<think>\nonce more\n</think>\n\nyes")],
        [user("q"), assistant("a", reasoning_content="because\n"), user("why?"),
         assistant("b", reasoning_content="so")],
        [user([{"type": "text", "text": "What is this?"}, {"type": "image"}, {"type": "text", "text": " Tell."}])],
        [SYSTEM, user("a"), LATER_SYSTEM, user("b")],
        [user("a"), user("b")],
        [assistant("I begin.")],
        [],
        [user("")],
        [{"role": "critic", "content": "bad"}],
    ]
    out = [{"messages": m, "add_generation_prompt": i % 5 != 4} for i, m in enumerate(chats)]
    out += [
        {"messages": [user("Weather?")], "tools": TOOLS, "add_generation_prompt": True},
        {"messages": [SYSTEM, user("Weather?"), assistant("", tool_calls=[weather]), tool("12 °C"), assistant("12.")],
         "tools": TOOLS[:1]},
        {"messages": [user("Both?"), assistant(None, tool_calls=both), tool("{\"t\": 12}"), tool("3", "zyxwvu987")],
         "tools": TOOLS, "add_generation_prompt": True},
        {"messages": [user("Add"), assistant(None, tool_calls=[as_text]), tool("2"), assistant("2"), user("Thanks")],
         "tools": TOOLS[1:], "add_generation_prompt": True},
        {"messages": [user("Add"), assistant("Sure.", tool_calls=[as_text]), tool("2")], "add_generation_prompt": True},
        {"messages": [user("q")], "variables": {"enable_thinking": False}, "add_generation_prompt": True},
        {"messages": [user("q")], "variables": {"enable_thinking": True, "other": [1, {"x": None}]}},
        {"messages": [user("q")], "documents": [{"title": "T", "text": "words"}], "add_generation_prompt": True},
    ]
    return out


WORDS = ["ja", "  ", "\n", "<think>", "</think>", "<tool_call>", "{\"a\": 1}", "日本", "'quoted'", "\"", "\\n", "<s>",
         "&lt;",
         "[INST]", "<|im_end|>", "\t", "end.", "<｜User｜>", "é", "{{ x }}", "{% if %}"]


def made_up(rng):
    def words(low=0):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, 6)))

    messages = [dict(SYSTEM, content=words())] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 6)):
        messages.append(user(words()))
        if rng.random() < 0.3:
            n = rng.randint(1, 3)
            ids = ["".join(rng.choice("abc123") for _ in range(9)) for _ in range(n)]
            arguments = [{"x": words(), "y": [rng.random(), rng.randint(-9, 9), None, True]} for _ in range(n)]
            if rng.random() < 0.3:
                arguments = [json.dumps(a) for a in arguments]
            calls = [call(rng.choice(["f", "get_weather"]), a, i) for a, i in zip(arguments, ids)]
            messages.append(assistant(rng.choice([None, "", words()]), tool_calls=calls))
            messages += [tool(words(), i) for i in ids]
            if rng.random() < 0.3:
                continue
        more = {"reasoning_content": words()} if rng.random() < 0.3 else {}
        thought = f"<think>\n{words()}\n</think>\n\n" if rng.random() < 0.3 else ""
        messages.append(assistant(thought + words(), **more))
    if rng.random() < 0.7:
        messages.append(user(words()))
    chat = {"messages": messages, "add_generation_prompt": rng.random() < 0.6}
    if rng.random() < 0.3:
        chat["tools"] = TOOLS[: rng.randint(1, 2)]
    if rng.random() < 0.3:
        chat["variables"] = {"enable_thinking": rng.random() < 0.5}
    return chat


def write(folder, name, entries):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries) + "\n]\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default=GOLDEN)
    p.add_argument("--shared", default=os.environ.get("KVRUN_SHARED") or os.path.join(ROOT, "..", "shared"))
    p.add_argument("--random", type=int, default=0, help="so many more conversations")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = random.Random(a.seed)
    chats = fixed() + [made_up(rng) for _ in range(a.random)]
    for chat in chats:
        chat.update(bos_token="<s>", eos_token="</s>")
    write(a.out, "conversations.json", chats)
    write(a.out, "snippets.json", [render(compiled(s), {"messages": []}) for s in snippets()])
    texts = templates(a.shared)
    for name, text in texts.items():
        template = compiled(text)
        write(a.out, name + ".json", [render(template, chat) for chat in chats])
    print(f"{len(chats)} conversations, {len(texts)} templates, {len(snippets())} snippets, jinja2 {jinja2.__version__}")


if __name__ == "__main__":
    main()
