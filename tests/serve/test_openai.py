#!/usr/bin/env python3
"""kvrun serve and the openai Python package: answers, streams, choices, errors, several at once. Usage: test_openai.py
KVRUN. Exit code 77: the package is not installed (pip install openai)."""
import asyncio, sys
from serving import Server, check, equal, finish

try:
    import openai
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

MODEL, HELLO = "recall-4m-f16", [{"role": "user", "content": "Hello"}]
KEY = "key"


def ask(client, **more):
    return client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, **{"temperature": 0, **more})


def answers(c):
    equal("models", [m.id for m in c.models.list()], [MODEL])
    whole = ask(c)
    text, usage = "", None
    for e in ask(c, stream=True, stream_options={"include_usage": True}):
        text += (e.choices[0].delta.content or "") if e.choices else ""
        usage = e.usage or usage
    equal("a stream", text, whole.choices[0].message.content)
    equal("its usage", usage.completion_tokens, whole.usage.completion_tokens)
    once = c.completions.create(model=MODEL, prompt="Once upon", max_tokens=4,
                                extra_body={"kv": "kivi2", "ignore_eos": True})
    equal("a completion under a policy", (once.usage.completion_tokens, once.kv["policy"]), (4, "kivi2"))
    with_logprobs = ask(c, logprobs=True, top_logprobs=2)
    equal("logprobs", len(with_logprobs.choices[0].logprobs.content[0].top_logprobs), 2)
    return whole


def choices(c):
    hot = {"temperature": 1.9, "extra_body": {"ignore_eos": True}}
    whole = ask(c, n=3, seed=11, **hot)
    want = [ask(c, seed=11 + i, **hot).choices[0].message.content for i in range(3)]
    equal("three choices", [x.message.content for x in whole.choices], want)
    check("they differ", len(set(want)) == 3, want)
    equal("usage of three", (whole.usage.completion_tokens, whole.usage.total_tokens),
          (48, 48 + whole.usage.prompt_tokens))
    streamed = [""] * 3
    for e in ask(c, n=3, seed=11, stream=True, **hot):
        for x in e.choices:
            streamed[x.index] += x.delta.content or ""
    equal("three choices in a stream", streamed, want)
    texts = c.completions.create(model=MODEL, prompt="Once", max_tokens=4, n=2, seed=1,
                                 extra_body={"ignore_eos": True}).choices
    equal("two completions", [x.index for x in texts], [0, 1])


def errors(c, url):
    for what, call, kind in (("a model that is not there", lambda: c.chat.completions.create(model="x", messages=HELLO),
                              openai.NotFoundError), ("another", lambda: c.models.retrieve("x"), openai.NotFoundError),
                              ("too many choices", lambda: ask(c, n=5), openai.BadRequestError),
                             ("a wrong field", lambda: ask(c, top_p=2), openai.BadRequestError),
                             ("a wrong key",
                              lambda: openai.OpenAI(base_url=url, api_key="no", max_retries=0).models.list(),
                              openai.AuthenticationError)):
        try:
            call()
            check(f"{what}: an error", False)
        except kind as e:
            check(f"{what}: its message", e.body and e.body["message"], e.body)


async def at_once(url, whole):
    c = openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0)
    found = await asyncio.gather(*[ask(c) for _ in range(8)])
    equal("eight at once", {x.choices[0].message.content for x in found}, {whole.choices[0].message.content})
    stream = await ask(c, stream=True)
    text = "".join([e.choices[0].delta.content or "" async for e in stream])
    equal("an asynchronous stream", text, whole.choices[0].message.content)


def main():
    with Server("--chat-template", "chatml", "--api-key", KEY, "--strict-model") as s:
        url = f"http://127.0.0.1:{s.port}/v1"
        c = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
        whole = answers(c)
        choices(c)
        errors(c, url)
        asyncio.run(at_once(url, whole))
        equal("it ends", s.stop(), 0)
    finish()


main()
