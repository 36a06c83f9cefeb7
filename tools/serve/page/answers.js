// Answers: what is asked of the server, and what comes back. Each conversation has at most one under way.
"use strict";
const running = new Map(); // of conversations: {m, at, abort, box, begun}
let leaving = false; // the page is being left: requests end, and that is no failure

// Calls on_event for each event of a stream.
async function read_events(response, on_event) {
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	for (let rest = "";;) {
		const {value, done} = await reader.read();
		if (done) return;
		const events = (rest + value).split("\n\n");
		rest = events.pop();
		for (const e of events)
			if (e.startsWith("data: ") && e !== "data: [DONE]") on_event(JSON.parse(e.slice(6)));
	}
}
const media_part = url => url.startsWith("data:audio/") ?
	{type: "input_audio",
		input_audio: {data: url.slice(url.indexOf(",") + 1), format: url.slice(11, url.indexOf(";"))}} :
	{type: "image_url", image_url: {url}};
function request(said) {
	const messages = said.filter((m, i) => !left_out(said, i)).map(m => ({role: m.role, content: !m.images ? m.content :
		[...m.images.map(media_part),
			...m.content ? [{type: "text", text: m.content}] : []]}));
	if (settings.system) messages.unshift({role: "system", content: settings.system});
	const body = {messages, stream: true, stream_options: {include_usage: true}};
	for (const name of numbers)
		if (settings[name] !== "") body[name] = +settings[name];
	const stops = settings.stops.split("\n").filter(s => s);
	if (stops.length) body.stop = stops;
	if (settings.kv) body.kv = settings.kv;
	return body;
}
// An error of the server in the words of this page.
function in_words(error, status) {
	if (status === 401) return {text: "The server asks for its key.", key: true};
	if (error.code === "context_length_exceeded")
		return {text: "This conversation does not fit the context" + (context ? ` of ${context} tokens` : "") +
			". Edit the message to make it shorter, or begin a new chat."};
	if (status === 429) return {text: "The server has too many requests. Retry in a moment."};
	return {text: error.message || `The server answered with status ${status}.`};
}
async function refusal(r) {
	let error = {};
	try { error = (await r.json()).error || {}; } catch {}
	return Object.assign(new Error(), {shown: in_words(error, r.status)});
}
function cut_words(usage) { // why an answer has finish_reason "length"
	if (!usage) return "stopped at a limit of tokens";
	return context && usage.total_tokens >= context - 1 ? `the context of ${context} tokens is full` :
		`stopped at the limit of ${usage.completion_tokens} tokens`;
}
function measures(usage, kv, seconds) {
	const parts = [];
	if (usage)
		parts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens, ` +
			`${(usage.prompt_tokens_details || {}).cached_tokens || 0} not read again, ` +
			(seconds > 0 ? (usage.completion_tokens / Math.max(.001, seconds)).toFixed(1) + " tokens/s" : "no speed"));
	if (kv)
		parts.push(`${kv.policy}: ` + [["f16", kv.f16_bytes], ["codes", kv.code_bytes], ["scales", kv.param_bytes],
			["overhead", kv.overhead_bytes]].filter(([, n]) => n).map(([k, n]) => `${k} ${bytes(n)}`).join(", "));
	return parts;
}
// The first piece of an answer has come: only now it takes the place of an older one, which stays as another version.
function begin(c, run) {
	const {m, at} = run, old = c.messages[at];
	run.begun = true;
	if (old && old !== m) {
		const {others = [], at: place = 0, ...one} = old;
		m.others = [...others.slice(0, place), one, ...others.slice(place)];
		m.at = m.others.length;
		if (chat === c) $("log").querySelectorAll(".message")[at].remove();
	}
	c.messages.length = at;
	c.messages.push(m);
	m.partial = true, m.note = "not finished";
}
// Answers what comes before message `at`, or goes on with that message.
async function answer(c, at, go_on) {
	if (running.has(c)) return;
	const m = go_on ? c.messages[at] : {role: "assistant", content: "", reasoning: ""};
	const run = {m, at, abort: new AbortController(), box: make_box(m), begun: !!go_on};
	const sent = request(c.messages.slice(0, go_on ? at + 1 : at)); // in the order they were said
	running.set(c, run), failures.delete(c);
	run.box.classList.add("growing");
	fill(run.box, m);
	touch(c), save(c);
	if (chat === c) draw(), to_end();
	else draw_list();
	show_model();
	let started = 0, saved = performance.now(), usage = null, kv = null, reason = "", failed = null, drawing = 0;
	const show = () => {
		drawing = 0;
		if (chat !== c || !run.box.isConnected) return;
		const follow = at_end();
		fill(run.box, m);
		if (follow && !selects(run.box)) to_end();
	};
	const take = e => {
		if (e.error) throw Object.assign(new Error(), {shown: in_words(e.error, 0)});
		const choice = e.choices && e.choices[0] || {}, delta = choice.delta || {};
		const calls = (delta.tool_calls || []).map(t => (t.function.name || "") + (t.function.arguments || ""));
		const content = (delta.content || "") + calls.join("");
		usage = e.usage || usage, kv = e.kv || kv, reason = choice.finish_reason || reason;
		if (!content && !delta.reasoning_content || !chats.includes(c)) return;
		if (!run.begun) begin(c, run);
		if (!started) started = performance.now();
		m.content += content;
		m.reasoning = (m.reasoning || "") + (delta.reasoning_content || "");
		if (performance.now() - saved > 1000) saved = performance.now(), save(c);
		// a long answer is drawn less often
		if (!drawing) drawing = setTimeout(show, 30 + m.content.length / 100);
	};
	let stopped = false;
	try {
		const r = await fetch(address("/v1/chat/completions"),
			{method: "POST", headers: headers(), body: JSON.stringify(sent), signal: run.abort.signal});
		if (!r.ok) throw await refusal(r);
		await read_events(r, take);
	} catch (e) {
		stopped = e.name === "AbortError";
		if (!stopped) failed = e.shown || {text: "The server does not answer, or the connection was lost."};
	}
	clearTimeout(drawing);
	if (leaving) return;
	running.delete(c);
	if (!chats.includes(c)) return; // it was deleted
	if (run.begun) {
		m.note = [...stopped ? ["stopped"] : failed ? ["broken off"] : reason === "length" ? [cut_words(usage)] : [],
			...measures(usage, kv, started ? (performance.now() - started) / 1000 : 0)].join("; ");
		if (usage) m.tokens = usage.total_tokens;
		if (!stopped && !failed && reason !== "length") delete m.partial;
	}
	if (failed) failures.set(c, failed);
	touch(c), save(c);
	end_answer(c, run, failed);
}
function end_answer(c, run, failed) {
	draw_list();
	if (chat !== c) return;
	const follow = at_end();
	run.box.classList.remove("growing");
	draw_state();
	if (run.begun) fill(run.box, run.m), end_box(run.box, run.m);
	else draw();
	if (failed && run.begun) fail(failed);
	else if (follow && !selects(run.box)) to_end();
	if (document.activeElement === document.body || !document.activeElement) $("text").focus();
}
addEventListener("pagehide", () => {
	leaving = true;
	for (const c of running.keys()) save(c);
});
addEventListener("pageshow", () => leaving = false);
