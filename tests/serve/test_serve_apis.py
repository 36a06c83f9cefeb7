#!/usr/bin/env python3
"""kvrun serve with the Responses and the Messages API: whole answers, streams, keys, errors, long inputs.
Usage: test_serve_apis.py KVRUN."""
import os
from serving import TINY, Server, check, equal, finish

RESPONSES, MESSAGES, COUNT, CHAT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
ASK = "The code of Anna is 4711. What is the code of Anna?"
SURE = {"temperature": 0, "ignore_eos": True}
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools.jinja")


def chat(s, messages, **more):
    return s.post(CHAT, {"messages": messages, "max_tokens": 16, **SURE, **more}).json()


def responses(s):
    want = chat(s, [{"role": "system", "content": "Be short."}, {"role": "user", "content": ASK}])
    body = {"model": "gpt-5", "instructions": "Be short.", "input": ASK, "max_output_tokens": 16, **SURE}
    r = s.post(RESPONSES, body).json()
    equal("a response says what a chat does", r["output"][0]["content"][0]["text"],
          want["choices"][0]["message"]["content"])
    equal("its usage", (r["usage"]["input_tokens"], r["usage"]["output_tokens"]), (want["usage"]["prompt_tokens"], 16))
    equal("what it was asked", (r["model"], r["instructions"], r["status"], r["kv"]["policy"]),
          ("recall-4m-f16", "Be short.", "incomplete", "fp16"))
    events = s.post(RESPONSES, {**body, "stream": True}).named_events()
    equal("its events are numbered", [e["sequence_number"] for e in events], list(range(len(events))))
    equal("the first and the last", (events[0]["type"], events[-1]["type"]),
          ("response.created", "response.incomplete"))
    equal("a stream says the same", "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"),
          r["output"][0]["content"][0]["text"])
    equal("and its last event all of it", events[-1]["response"]["output"][0]["content"], r["output"][0]["content"])
    check("in pieces", len(events) > 15, len(events))
    turn = [{"role": "user", "content": ASK}, r["output"][0], {"role": "user", "content": "And once more?"}]
    again = s.post(RESPONSES, {**body, "input": turn}).json()
    check("a conversation that goes on is not read again", again["usage"]["input_tokens_details"]["cached_tokens"] >
          r["usage"]["input_tokens"] - 2, again["usage"])
    probs = {**body, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "cache_prompt": False}
    content = s.post(RESPONSES, probs).json()["output"][0]["content"][0]
    want = chat(s, [{"role": "system", "content": "Be short."}, {"role": "user", "content": ASK}], logprobs=True,
                top_logprobs=2, cache_prompt=False)["choices"][0]["logprobs"]["content"]

    def shown(tokens):
        return [(t["token"], round(t["logprob"], 3), [x["token"] for x in t["top_logprobs"]]) for t in tokens]
    equal("log probabilities as in a chat", shown(content["logprobs"]), shown(want))
    events = s.post(RESPONSES, {**probs, "stream": True}).named_events()
    equal("in a stream", shown(sum((e["logprobs"] for e in events if e["type"] == "response.output_text.delta"), [])),
          shown(want))
    equal("at the end of the text", shown(next(e for e in events if e["type"] == "response.output_text.done")
                                          ["logprobs"]), shown(want))
    equal("none unless they are asked for", s.post(RESPONSES, body).json()["output"][0]["content"][0]["logprobs"], [])
    r = s.post(RESPONSES, {**body, "previous_response_id": "resp_1"})
    check("what needs kept responses", r.status == 400 and r.json()["error"]["param"] == "previous_response_id", r.body)
    r = s.post(RESPONSES, {**body, "input": "word " * 5000})
    equal("too long", (r.status, r.json()["error"]["code"]), (400, "context_length_exceeded"))


def messages(s):
    want = chat(s, [{"role": "system", "content": "Be short."}, {"role": "user", "content": ASK}], cache_prompt=False)
    body = {"model": "claude", "system": "Be short.", "messages": [{"role": "user", "content": ASK}], "max_tokens": 16,
            **SURE}
    m = s.post(MESSAGES, {**body, "cache_prompt": False},
               **{"anthropic-version": "2023-06-01", "anthropic-beta": "x"}).json()
    equal("a message says what a chat does", m["content"],
          [{"type": "text", "text": want["choices"][0]["message"]["content"]}])
    equal("its usage", (m["usage"]["input_tokens"], m["usage"]["output_tokens"], m["stop_reason"]),
          (want["usage"]["prompt_tokens"], 16, "max_tokens"))
    equal("tokens are counted", s.post(COUNT, {k: body[k] for k in ("model", "system", "messages")}).json(),
          {"input_tokens": want["usage"]["prompt_tokens"]})
    events = s.post(MESSAGES + "?beta=true", {**body, "stream": True}).named_events()
    equal("its first and last events", (events[0]["type"], events[-1]["type"]), ("message_start", "message_stop"))
    equal("a stream says the same", "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"),
          m["content"][0]["text"])
    equal("why it ended", events[-2]["delta"], {"stop_reason": "max_tokens", "stop_sequence": None})
    usage = events[-2]["usage"]
    equal("all of the prompt is counted", usage["input_tokens"] + usage["cache_read_input_tokens"],
          m["usage"]["input_tokens"])
    text = m["content"][0]["text"]
    word = next(text[i:i + 3] for i in range(4, len(text) - 3) if text.find(text[i:i + 3]) == i)
    r = s.post(MESSAGES, {**body, "stop_sequences": ["never said", word]}).json()
    equal("a stop sequence", (r["stop_reason"], r["stop_sequence"], r["content"][0]["text"]),
          ("stop_sequence", word, text[:text.find(word)]))
    tools = [{"name": "add", "description": "Adds.",
              "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}}}]
    counted = s.post(COUNT, {**body, "tools": tools}).json()["input_tokens"]
    check("tools reach the prompt", counted > want["usage"]["prompt_tokens"] + 20, counted)
    turns = body["messages"] + [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add",
                                                                   "input": {"a": 1}}]},
                                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                                                              "content": "2"}]}]
    check("results of tools too", s.post(COUNT, {**body, "tools": tools, "messages": turns}).json()["input_tokens"] >
          counted)
    for status, r in ((400, s.post(MESSAGES, {**body, "top_p": 2})), (400, s.post(MESSAGES, "{")),
                      (405, s.get(MESSAGES)),
                      (400, s.post(COUNT, {"messages": 5})), (404, s.get(MESSAGES + "/batches")),
                      (400, s.post(MESSAGES, {**body, "messages": [{"role": "user", "content": "word " * 5000}]}))):
        check(f"an error in its form, status {status}", r.status == status and r.json()["type"] == "error" and
              r.json()["error"]["message"], (r.status, r.body))


def both(s):
    """Long inputs take time in proportion to their length; a missing template is an error that names the remedy"""
    n = 30000
    rows = [("items", RESPONSES, {"input": [{"role": "user", "content": "x"}] * n}),
            ("parts", RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * n}]}),
            ("calls", RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f",
                                             "arguments": "{}"}] * (n // 2)}),
            ("messages", MESSAGES, {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}] * n}),
            ("answers", MESSAGES, {"max_tokens": 1, "messages": [{"role": "assistant", "content": "x"}] * n +
                                   [{"role": "user", "content": "x"}]}),
            ("blocks", MESSAGES,
             {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * n}]}),
            ("fields", RESPONSES, {"input": "x", "max_output_tokens": 1, **{f"f{i}": 0 for i in range(65000)}}),
            ("fields", MESSAGES, {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                                  **{f"f{i}": 0 for i in range(65000)}})]
    for what, path, body in rows:
        before = s.cpu()
        r = s.post(path, body)
        took = s.cpu() - before
        equal(f"{n} {what} for {path}", r.status, 200 if what == "fields" else 400)
        check(f"{n} {what} for {path}: processor time", took < 5, took)
    with Server(model=TINY) as bare:
        for path, body in ((RESPONSES, {"input": "x"}),
                           (MESSAGES, {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]})):
            r = bare.post(path, body)
            check(f"{path} of a model without a template", r.status == 400 and "chatml" in r.json()["error"]["message"],
                  r.body)


def keys():
    with Server("--api-key", "secret", model=TINY) as s:
        for headers, status in (({"x-api-key": "secret"}, 200), ({"x-api-key": "secre"}, 401),
                                ({"Authorization": "Bearer secret"}, 200),
                                ({"x-api-key": "no", "Authorization": "Bearer secret"}, 200), ({"x-api-key": ""}, 401),
                                ({}, 401)):
            equal(f"{headers}", s.get("/v1/models", **headers).status, status)
        r = s.post(MESSAGES, {}, **{"x-api-key": "no"})
        equal("an error in its form", (r.status, r.json()["type"], r.json()["error"]["type"]),
              (401, "error", "authentication_error"))


def main():
    with Server("--chat-template", TEMPLATE) as s:
        for part in (responses, messages, both):
            part(s)
            check(f"the server goes on after {part.__name__}", s.alive())
        equal("it ends", s.stop(), 0)
    keys()
    finish()


main()
