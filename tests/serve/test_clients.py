#!/usr/bin/env python3
"""kvrun serve and the packages that agents and applications use: openai, anthropic, langchain-openai. Usage:
test_clients.py KVRUN PACKAGE. KVRUN_TEST_CHAT=1: with SmolLM2, if tools/models.sh smollm2 has fetched it.
Exit code 77: the package is not installed."""
import importlib, json, os, subprocess, sys
from serving import MODEL, ROOT, Server, check, equal, finish

KEY = "key"
ASK = "What is the capital of France?"
ADD = {"name": "add", "parameters": {"type": "object", "additionalProperties": False, "required": ["text", "n"],
                                     "properties": {"text": {"type": "string", "minLength": 20, "maxLength": 40},
                                                    "n": {"type": "integer", "minimum": 1, "maximum": 9}}}}


def responses(url):
    import openai
    c = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    r = c.responses.create(model="gpt-5", instructions="Be short.", input=ASK, max_output_tokens=24, temperature=0)
    check("a response", r.output_text and r.status in ("completed", "incomplete"), r)
    equal("its usage", r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens)
    with c.responses.stream(model="gpt-5", instructions="Be short.", input=ASK, max_output_tokens=24,
                            temperature=0) as stream:
        kinds = [e.type for e in stream]
    check("a stream", kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"),
          kinds)
    text = "".join(e.delta for e in c.responses.create(model="x", instructions="Be short.", input=ASK,
                                                       max_output_tokens=24,
                                                       temperature=0, stream=True)
                   if e.type == "response.output_text.delta")
    equal("it says the same", text, r.output_text)
    turn = [{"role": "user", "content": ASK}, *[i.model_dump(exclude_none=True) for i in r.output],
            {"role": "user", "content": "Why?"}]
    check("a second turn", c.responses.create(model="x", input=turn,
                                              max_output_tokens=8).usage.input_tokens > r.usage.input_tokens)
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
    turn = [{"role": "user", "content": ASK}, {"type": "function_call", "call_id": "c", "name": "add",
                                               "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "2"}]
    check("tools", c.responses.create(model="x", input=turn, tools=[tool],
                                      max_output_tokens=8).usage.output_tokens <= 8)
    try:
        c.responses.create(model="x", input="a", previous_response_id="resp_1")
        check("what is not supported", False)
    except openai.BadRequestError as e:
        equal("what is not supported", e.param, "previous_response_id")
    v = c.embeddings.create(model="x", input=["a", "b"]).data
    check("embeddings", len(v) == 2 and abs(sum(x * x for x in v[0].embedding) - 1) < 1e-4, v[0].embedding[:3])
    equal("as numbers", [round(x, 5) for x in c.embeddings.create(model="x", input="a",
                                                                  encoding_format="float").data[0].embedding],
          [round(x, 5) for x in v[0].embedding])
    equal("one model", c.models.retrieve("gpt-5").created > 0, True)
    ask = {"model": "x", "messages": [{"role": "user", "content": ASK}],
           "tools": [{"type": "function", "function": ADD}],
           "tool_choice": {"type": "function", "function": {"name": "add"}}, "max_tokens": 200, "temperature": 0}
    whole = c.chat.completions.create(**ask).choices[0].message.tool_calls[0].function
    deltas = [d for e in c.chat.completions.create(**ask, stream=True) for d in e.choices[0].delta.tool_calls or []]
    equal("a streamed call", ("".join(d.function.name or "" for d in deltas),
                              "".join(d.function.arguments for d in deltas)), (whole.name, whole.arguments))
    check("its arguments come in pieces", len(deltas) > 2 and json.loads(whole.arguments)["text"] is not None, deltas)
    events = list(c.responses.create(model="x", input=ASK, tools=[{"type": "function", "strict": False, **ADD}],
                                     tool_choice="required", max_output_tokens=200, temperature=0, stream=True))
    equal("a streamed call of a response",
          "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta"),
          "".join(i.arguments for i in events[-1].response.output if i.type == "function_call"))
    r = c.chat.completions.with_raw_response.create(model="gpt-5", messages=[{"role": "user", "content": ASK}],
                                                    max_tokens=4,
                                                    frequency_penalty=1, logit_bias={"5": 1}, user="me",
                                                    metadata={"a": "b"})
    check("an id of the request", r.headers["x-request-id"] == r.parse()._request_id, dict(r.headers))


def messages(url):
    import anthropic
    c = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=KEY, max_retries=0)
    ask = {"model": "claude-sonnet", "max_tokens": 24, "system": "Be short.",
           "messages": [{"role": "user", "content": ASK}], "extra_body": {"temperature": 0}}
    m = c.messages.create(**ask)
    check("a message", m.content[0].text and m.stop_reason in ("end_turn", "max_tokens"), m)
    counted = c.messages.count_tokens(model="x", system="Be short.", messages=ask["messages"]).input_tokens
    equal("tokens are counted", counted, m.usage.input_tokens + m.usage.cache_read_input_tokens)
    with c.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    equal("a stream says the same", (text, final.content[0].text, final.stop_reason),
          (m.content[0].text, m.content[0].text, m.stop_reason))
    equal("its usage", final.usage.output_tokens, m.usage.output_tokens)
    tools = [{"name": "add", "description": "Adds.",
              "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}}}]
    call = {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "2"}
    turns = ask["messages"] + [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    check("tools", c.messages.create(**{**ask, "messages": turns}, tools=tools,
                                     tool_choice={"type": "auto"}).usage.output_tokens <= 24)
    need = {**ask, "max_tokens": 200, "tool_choice": {"type": "tool", "name": "add"},
            "tools": [{"name": "add", "input_schema": ADD["parameters"]}]}
    with c.messages.stream(**need) as stream:
        pieces = [e.partial_json for e in stream if e.type == "input_json"]
        final = stream.get_final_message().content[0]
    equal("a streamed call", (json.loads("".join(pieces)), final.input, final.name),
          (c.messages.create(**need).content[0].input, final.input, "add"))
    check("its arguments come in pieces", len(pieces) > 2, pieces)
    stranger = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="no", max_retries=0)
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    pictures = {**ask, "messages": [{"role": "user", "content": [image]}]}
    for what, call, kind in (
            ("a wrong key", lambda: stranger.messages.create(**ask), anthropic.AuthenticationError),
            ("a block that is no text", lambda: c.messages.create(**pictures), anthropic.BadRequestError)):
        try:
            call()
            check(what, False)
        except kind as e:
            check(what, e.body["error"]["message"], e.body)


def langchain(url):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    ask = [("system", "Be short."), ("human", ASK)]
    for kind, more in (("chats", {}), ("responses", {"use_responses_api": True})):
        c = ChatOpenAI(base_url=url, api_key=KEY, model="x", temperature=0, max_tokens=24, max_retries=0, **more)
        whole = c.invoke(ask)
        check(f"{kind}: an answer", whole.text and whole.usage_metadata["output_tokens"] <= 24, whole)
        equal(f"{kind}: a stream", "".join(p.text for p in c.stream(ask)), whole.text)
    e = OpenAIEmbeddings(base_url=url, api_key=KEY, model="x", check_embedding_ctx_length=False)
    v = e.embed_documents(["a", "b"])
    check("embeddings", len(v) == 2 and v[0] != v[1] and v[0] == e.embed_query("a"))


def main():
    package = sys.argv[2]
    try:
        importlib.import_module(package)
    except ImportError as e:
        print(f"skipped: {e}")
        sys.exit(77)
    model = MODEL
    if os.environ.get("KVRUN_TEST_CHAT"):
        found = subprocess.run([os.path.join(ROOT, "tools", "models.sh"), "--path", "smollm2"], capture_output=True,
                               text=True)
        model = found.stdout.strip() or model
    print("model:", model)
    template = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools.jinja")
    with Server("--api-key", KEY, "-c", "2048", "--chat-template", template, model=model) as s:
        {"openai": responses, "anthropic": messages,
         "langchain_openai": langchain}[package](f"http://127.0.0.1:{s.port}/v1")
        equal("it ends", s.stop(), 0)
    finish()


main()
