#!/usr/bin/env python3
"""kvrun serve: answers that follow a grammar, a JSON schema, or the form of tool calls. Usage: test_serve_forms.py
KVRUN. Uses the clients openai and langchain-openai if installed, and names those that are not."""
import json, os, tempfile
from serving import Server, check, equal, finish

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
HERE = os.path.dirname(os.path.abspath(__file__))
HOT = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0}
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                            "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER,
                                           "strict": True}},
         {"type": "function",
          "function": {"name": "time_of",
                       "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}},
                                      "required": ["zone"]}}}]


def chat(**more):
    return {"messages": HELLO, "max_tokens": 800, **HOT, **more}


def content(s, **more):
    r = s.post(CHAT, chat(**more))
    check(f"{str(more)[:60]} is answered", r.status == 200, r.body[:300])
    c = r.json()["choices"][0]
    return c["message"]["content"], c["finish_reason"]


def is_weather(v):
    return list(v) == ["city", "days"] and isinstance(v["city"], str) and len(v["city"]) <= 8 and v["days"] in range(1,
                                                                                                                     10)


def schemas(s):
    """T41 answers constrained to a schema are values of it, whatever field requests it"""
    wrapped = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": WEATHER}}
    for seed, more in enumerate(({"response_format": wrapped}, {"json_schema": WEATHER}, {"guided_json": WEATHER},
                                 {"guided_json": json.dumps(WEATHER)},
                                 {"response_format": {"type": "json_object", "schema": WEATHER}},
                                 {"response_format": wrapped, "n": 2},
                                 {"response_format": wrapped, "temperature": 0},
                                 {"response_format": wrapped, "logprobs": True},
                                 {"response_format": wrapped, "repeat_penalty": 1.3, "top_k": 40})):
        text, why = content(s, seed=seed, **more)
        check(f"{more} gives a value", why == "stop" and is_weather(json.loads(text)), (text, why))
    r = s.post(CHAT, chat(response_format=wrapped, stream=True, seed=3))
    text = "".join(c["delta"].get("content") or "" for e in r.events() for c in e["choices"])
    check("a stream is one, too", is_weather(json.loads(text)), text)
    equal("the same seed says the same", text, content(s, response_format=wrapped, seed=3)[0])
    text, why = content(s, response_format={"type": "text"}, max_tokens=5)
    equal("type text asks for nothing", why, "length")
    r = s.post(COMPLETION, {"prompt": "Once", "json_schema": {"enum": ["red", "green"]}, "max_tokens": 50})
    check("a completion", json.loads(r.json()["choices"][0]["text"]) in ("red", "green"), r.body)


def grammars(s):
    for more in ({"grammar": 'root ::= ("yes" | "no") "!"{2}'},
                 {"guided_grammar": 'root ::= x "!!"\nx ::= "yes" | "no"'}):
        text, why = content(s, **more)
        check("a grammar", text in ("yes!!", "no!!") and why == "stop", (text, why))
    text, why = content(s, grammar="root ::= [a-c]{3,5}", n=1, stop=["zz"])
    check("ends where it may", 3 <= len(text) <= 5 and set(text) <= set("abc"), (text, why))
    text, _ = content(s, max_tokens=6, ignore_eos=True)
    check("the next request is free again", not set(text) <= set("abc"), text)


def refused(s):
    rows = [({"grammar": "root = x"}, "grammar", "line 1, column 6"),
            ({"grammar": "root ::= root"}, "grammar", "never ends"),
            ({"grammar": "root ::= <|nothing|>"}, "grammar", "<|nothing|>"),
            ({"grammar": 'root ::= (("a"{1,99999}){1,99999}){1,99999}'}, "grammar", "too large"),
            ({"json_schema": {"type": "object", "patternProperties": {"a": {}, "b": {"type": "null"}}}}, "json_schema",
             "#/patternProperties"),
            ({"response_format": {"type": "json_schema",
                                  "json_schema": {"name": "x", "schema": {"type": "strin"}}}}, "response_format",
             "#/type"),
            ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
            ({"response_format": {"type": "xml"}}, "response_format", "xml"),
            ({"grammar": "root ::= [a]", "json_schema": {}}, "json_schema", "give one"),
            ({"guided_json": "{"}, "guided_json", "schema"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice",
             "not among"),
            ({"tool_choice": "required"}, "tool_choice", "no tools")]
    for more, param, message in rows:
        r = s.post(CHAT, chat(**more))
        check(f"{more} is refused", r.status == 400 and r.error() and message in r.error() and
              r.json()["error"]["param"] == param, r.body)


def calls(s):
    """T41 required calls are made, with arguments that follow their functions' schemas"""
    for seed in range(3):
        r = s.post(CHAT, chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}},
                              seed=seed)).json()["choices"][0]
        calls = r["message"].get("tool_calls") or []
        equal("a named function is called once", [c["function"]["name"] for c in calls], ["weather"])
        check("its arguments", calls and is_weather(json.loads(calls[0]["function"]["arguments"])), r)
        equal("why it ended", (r["finish_reason"], r["message"]["content"]), ("tool_calls", None))
    one = s.post(CHAT, chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                            seed=1)).json()["choices"][0]["message"]
    equal("one call", len(one.get("tool_calls") or []), 1)
    body = chat(tools=TOOLS, tool_choice="required", seed=4, temperature=0, max_tokens=200)
    whole = s.post(CHAT, body).json()["choices"][0]["message"].get("tool_calls") or []
    streamed = {}
    for e in s.post(CHAT, {**body, "stream": True}).events():
        for c in e["choices"]:
            for d in c["delta"].get("tool_calls") or []:
                call = streamed.setdefault(d["index"], {"name": "", "arguments": ""})
                call["name"] += d["function"].get("name") or ""
                call["arguments"] += d["function"].get("arguments") or ""
    equal("deltas give the same calls", [streamed[i] for i in sorted(streamed)], [c["function"] for c in whole])
    check("there is one", len(whole) > 0, whole)
    text = s.post(CHAT, chat(tools=TOOLS, tool_choice="none", max_tokens=5,
                             ignore_eos=True)).json()["choices"][0]["message"]
    check("none", not text.get("tool_calls"), text)
    both = s.post(CHAT, chat(tools=TOOLS, response_format={"type": "json_object"}, seed=2,
                             max_tokens=400)).json()["choices"][0]
    m = both["message"]
    check("an object or a call", m.get("tool_calls") or both["finish_reason"] == "length" or
          isinstance(json.loads(m["content"]), dict), both)


def unknown_form():
    """Where the form of a template's calls is not known, tools are described in the system message."""
    text = ("{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "unknown.jinja")
        with open(path, "w") as f:
            f.write(text)
        with Server("--chat-template", path, "--ctx-size", "2048") as s:
            for more in ({}, {"parallel_tool_calls": False}, {"tool_choice": "auto"}):
                r = s.post(CHAT, chat(tools=TOOLS, max_tokens=5, **more))
                equal(f"strict functions {more}", (r.status, r.json().get("object")), (200, "chat.completion"))
            r = s.post(CHAT, chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
            check("a required call", len(r.json()["choices"][0]["message"]["tool_calls"]) == 1, r.body)
            text, _ = content(s, tools=TOOLS, json_schema={"enum": ["red", "green"]})
            check("a form beside them", json.loads(text) in ("red", "green"), text)


def openai_client(url):
    try:
        import openai, pydantic
    except ImportError as e:
        return print(f"left out: openai ({e})")

    class Weather(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=8)
        days: int = pydantic.Field(ge=1, le=9)

    c = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    ask = {"model": "recall-4m-f16", "messages": HELLO, "max_tokens": 800}
    r = c.chat.completions.parse(response_format=Weather, temperature=2, seed=5, **ask)
    check("openai parse()", isinstance(r.choices[0].message.parsed, Weather), r)
    with c.chat.completions.stream(response_format=Weather, temperature=1, seed=5, **ask) as stream:
        check("openai stream with a type", isinstance(stream.get_final_completion().choices[0].message.parsed, Weather))
    tool = openai.pydantic_function_tool(Weather)
    r = c.chat.completions.parse(tools=[tool], tool_choice="required", temperature=2, seed=1, parallel_tool_calls=False,
                                 **ask)
    check("openai parse() of a call", isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Weather),
          r)


def langchain_client(url):
    try:
        import langchain_openai, pydantic
    except ImportError as e:
        return print(f"left out: langchain-openai ({e})")

    class Weather(pydantic.BaseModel):
        """The weather."""
        city: str = pydantic.Field(max_length=8)
        days: int = pydantic.Field(ge=1, le=9)

    c = langchain_openai.ChatOpenAI(base_url=url, api_key="none", model="recall-4m-f16", temperature=1, max_tokens=800,
                                    seed=3, max_retries=0)
    for method in ("json_schema", "function_calling"):
        r = c.with_structured_output(Weather, method=method).invoke("Hello")
        check(f"with_structured_output by {method}", isinstance(r, Weather), r)
    r = c.bind_tools([Weather], tool_choice="any").invoke("Hello")
    check("bind_tools", r.tool_calls and r.tool_calls[0]["name"] == "Weather" and
          1 <= r.tool_calls[0]["args"]["days"] <= 9, r)


def main():
    with Server("--chat-template", os.path.join(HERE, "tools.jinja"), "--ctx-size", "2048") as s:
        for test in (schemas, grammars, refused, calls):
            test(s)
        for client in (openai_client, langchain_client):
            client(f"http://127.0.0.1:{s.port}/v1")
    unknown_form()
    finish()


if __name__ == "__main__":
    main()
