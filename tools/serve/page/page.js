// The page: conversations that the browser keeps, settings, answers as they come, memory.
"use strict";
const $ = id => document.getElementById(id);
const kinds = {f16: "f16", codes: "codes", params: "scales", overhead: "overhead", unused: "free in pages"};
const numbers = ["temperature", "top_p", "min_p", "max_tokens", "seed"];
const fields = [...numbers, "system", "kv", "theme"];

// ---- what the browser keeps

const kept = (() => {
	try { return JSON.parse(localStorage.getItem("kvrun")) || {}; } catch { return {}; }
})();
let chats = Array.isArray(kept.chats) ? kept.chats.filter(c => c && Array.isArray(c.messages)) : [];
const settings = {temperature: "", top_p: "", min_p: "", max_tokens: "", seed: "", system: "", kv: "", theme: "",
	...kept.settings};
let chat = chats.find(c => c.id === kept.chat), abort = null, editing = -1;
let images = []; // of the next message, as addresses that hold them (data:)

function save() {
	const what = without => JSON.stringify({chats: chats.filter(c => c.messages.length), chat: chat.id, settings},
		(key, value) => key === without ? undefined : value);
	for (const [without, said] of [[null, "Conversations are kept in this browser."],
		["images", "This browser keeps no more images: delete conversations, or these are gone with the page."]])
		try {
			localStorage.setItem("kvrun", what(without));
			$("store").textContent = said;
			return;
		} catch {}
	$("store").textContent = "This browser keeps no more conversations: delete some, or these are gone with the page.";
}
// crypto.randomUUID is for secure contexts only
const new_id = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
function new_chat(messages, title) {
	chats = chats.filter(c => c.messages.length); // one empty chat at most
	chat = {id: new_id(), title: title || "", messages: messages || [], time: Date.now()};
	chats.unshift(chat);
	editing = -1;
}
const title_of = c =>
	c.title || (c.messages.find(m => m.role === "user") || {content: "New chat"}).content.slice(0, 120) || "Image";

// ---- drawing

function bytes(n) {
	let u = 0;
	for (; n >= 1024 && u < 4; ++u) n /= 1024;
	return n.toFixed(u && n < 100 ? 1 : 0) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][u];
}
function headers() {
	const h = {"Content-Type": "application/json"};
	if ($("key").value) h.Authorization = "Bearer " + $("key").value;
	return h;
}
function tool(name, action) {
	return element("button", {type: "button", textContent: name, onclick: e => action(e.target)});
}
const at_end = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;
function to_end() { $("log").scrollTop = $("log").scrollHeight; }

const picture = src => element("img", {src, alt: "Image"});
function fill(body, m) {
	if (m.role === "user") {
		body.replaceChildren(...(m.images || []).map(picture), m.content);
		return;
	}
	const parts = [];
	if (m.reasoning) parts.push(element("div", {className: "reasoning", dir: "auto", textContent: m.reasoning}));
	const text = element("div", {className: "body"});
	show_markdown(text, m.content);
	body.replaceChildren(...parts, ...text.childNodes);
	body.style.whiteSpace = text.style.whiteSpace;
}
function message(m, i) {
	const body = element("div", {className: "body", dir: "auto"});
	const box = element("div", {className: "message " + m.role}, body);
	box.setAttribute("aria-label", m.role === "user" ? "You" : "Answer");
	if (i === editing) {
		const rows = Math.min(12, m.content.split("\n").length + 1);
		const text = element("textarea", {className: "edit", dir: "auto", value: m.content, rows});
		text.setAttribute("aria-label", "Edit the message");
		text.onkeydown = e => {
			if (e.key === "Escape") e.stopPropagation(), edit(-1);
			if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) again(i, text.value);
		};
		body.replaceWith(text, element("div", {className: "row"},
			tool("Cancel", () => edit(-1)), tool("Send", () => again(i, text.value))));
		setTimeout(() => text.focus());
		return box;
	}
	fill(body, m);
	const tools = element("div", {className: "tools"}, tool("Copy", b => copy(b, m.content)));
	if (m.role === "user") tools.append(tool("Edit", () => edit(i)));
	else if (i === chat.messages.length - 1) tools.append(tool("Retry", () => again(i - 1)));
	tools.append(tool("Fork", () => fork(i)));
	if (!abort) box.append(tools);
	if (m.note) box.append(element("div", {className: "note", textContent: m.note}));
	return box;
}
function draw() {
	const log = $("log");
	log.replaceChildren(...chat.messages.map(message));
	if (!chat.messages.length)
		log.append(element("div", {className: "hello",
			textContent: "Ask something. Enter sends, Shift-Enter begins a line, Esc stops."}));
	draw_list();
	$("send").hidden = !!abort;
	$("stop").hidden = !abort;
}
function draw_list() {
	const word = $("find").value.toLowerCase();
	const has = c => !word || title_of(c).toLowerCase().includes(word) ||
		c.messages.some(m => m.content.toLowerCase().includes(word));
	$("chats").replaceChildren(...chats.filter(has).map(c => {
		const name = title_of(c);
		const mark = name.endsWith(" (fork)") ? " (fork)" : ""; // is seen where the name is cut
		const title = element("button", {type: "button", className: "title", title: name},
			element("span", {dir: "auto", textContent: name.slice(0, name.length - mark.length)}), mark);
		title.onclick = () => {
			if (abort) return;
			chat = c, editing = -1;
			save(), draw(), to_end(), document.body.classList.remove("listing");
		};
		const drop = element("button", {type: "button", className: "drop", textContent: "✕", title: "Delete"});
		drop.setAttribute("aria-label", "Delete " + title_of(c));
		drop.onclick = () => ask(`Delete “${title_of(c).slice(0, 60)}”?`, () => remove(c));
		if (c === chat) title.setAttribute("aria-current", "true");
		return element("div", {className: "chat" + (c === chat ? " now" : "")}, title, drop);
	}));
}
function fail(text) {
	$("log").append(element("div", {className: "error", role: "alert", textContent: text}));
	to_end();
}

// ---- what one does

function ask(question, yes) {
	$("question").textContent = question;
	$("confirm").onclose = () => $("confirm").returnValue === "yes" && yes();
	$("confirm").returnValue = "";
	$("confirm").showModal();
}
function remove(c) {
	if (c === chat && abort) abort.abort();
	chats = chats.filter(o => o !== c);
	if (c === chat) chats.length ? chat = chats[0] : new_chat();
	save(), draw();
}
function edit(i) {
	if (abort) return;
	editing = i;
	draw();
}
function again(i, text) { // answers message i anew; what came behind it goes
	if (abort || i < 0) return;
	chat.messages.length = i + 1;
	if (text !== undefined) chat.messages[i] = {...chat.messages[i], content: text};
	editing = -1;
	answer();
}
function fork(i) {
	if (abort) return;
	new_chat(chat.messages.slice(0, i + 1).map(m => ({...m})), title_of(chat) + " (fork)");
	save(), draw(), to_end();
}

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
function request() {
	const messages = chat.messages.map(m => ({role: m.role, content: !m.images ? m.content :
		[...m.images.map(url => ({type: "image_url", image_url: {url}})),
			...m.content ? [{type: "text", text: m.content}] : []]}));
	if (settings.system) messages.unshift({role: "system", content: settings.system});
	const body = {messages, stream: true, stream_options: {include_usage: true}};
	for (const name of numbers)
		if (settings[name] !== "") body[name] = +settings[name];
	if (settings.kv) body.kv = settings.kv;
	return body;
}
async function answer() {
	abort = new AbortController();
	const mine = chat, m = {role: "assistant", content: "", reasoning: ""};
	draw(), to_end();
	const box = message(m, -2), body = box.querySelector(".body");
	$("log").append(box);
	let begun = 0, usage = null, kv = null, failed = "", drawing = 0;
	const show = () => {
		drawing = 0;
		if (chat !== mine || !box.isConnected) return;
		const follow = at_end();
		fill(body, m);
		if (follow) to_end();
	};
	try {
		const r = await fetch("/v1/chat/completions",
			{method: "POST", headers: headers(), body: JSON.stringify(request()), signal: abort.signal});
		if (!r.ok) throw new Error((await r.json()).error.message);
		await read_events(r, e => {
			if (e.error) throw new Error(e.error.message);
			const delta = e.choices && e.choices.length ? e.choices[0].delta || {} : {};
			if (!begun && (delta.content || delta.reasoning_content)) begun = performance.now();
			m.content += delta.content || "";
			m.reasoning += delta.reasoning_content || "";
			for (const c of delta.tool_calls || []) m.content += (c.function.name || "") + (c.function.arguments || "");
			usage = e.usage || usage;
			kv = e.kv || kv;
			// a long answer is drawn less often
			if (!drawing) drawing = setTimeout(show, 30 + m.content.length / 100);
		});
	} catch (e) {
		if (e.name !== "AbortError") failed = e.message;
		else m.note = "stopped";
	}
	clearTimeout(drawing);
	if (usage) m.note = `${usage.prompt_tokens} + ${usage.completion_tokens} tokens, ` +
		`${(usage.prompt_tokens_details || {}).cached_tokens || 0} not read again, ` +
		(usage.completion_tokens / Math.max(.001, (performance.now() - begun) / 1000)).toFixed(1) + " tokens/s";
	if (kv) m.note += `; ${kv.policy}: ` + [["f16", kv.f16_bytes], ["codes", kv.code_bytes], ["scales", kv.param_bytes],
		["overhead", kv.overhead_bytes]]
		.filter(([, n]) => n).map(([k, n]) => `${k} ${bytes(n)}`).join(", ");
	abort = null;
	if (m.content || m.reasoning) mine.messages.push(m);
	mine.time = Date.now();
	chats = [mine, ...chats.filter(c => c !== mine)].filter(c => c === mine || c.messages.length);
	const follow = at_end();
	save(), draw();
	if (failed) fail(failed);
	else if (follow) to_end();
	$("text").focus();
}
function send() {
	const text = $("text").value.trim();
	if (!text && !images.length || abort) return;
	chat.messages.push({role: "user", content: text, ...images.length && {images}});
	$("text").value = "";
	images = [];
	grow(), draw_images();
	save();
	answer();
}
// Models read images of about this many pixels along an edge, and the browser keeps little.
const longest_edge = 1280;
async function as_address(file) {
	const image = await createImageBitmap(file);
	const scale = Math.min(1, longest_edge / Math.max(image.width, image.height));
	const size = n => Math.max(1, Math.round(n * scale));
	const canvas = element("canvas", {width: size(image.width), height: size(image.height)});
	const pen = canvas.getContext("2d");
	pen.fillStyle = "#fff"; // where it is transparent
	pen.fillRect(0, 0, canvas.width, canvas.height);
	pen.drawImage(image, 0, 0, canvas.width, canvas.height);
	return canvas.toDataURL("image/jpeg", .9);
}
async function add_images(files) {
	for (const file of files)
		if (file.type.startsWith("image/"))
			try {
				images.push(await as_address(file));
				draw_images();
			} catch { fail(`${file.name || "That"} is no image that this browser reads.`); }
}
function draw_images() {
	$("images").replaceChildren(...images.map((src, i) => {
		const drop = tool("✕", () => (images.splice(i, 1), draw_images(), $("text").focus()));
		drop.setAttribute("aria-label", "Remove this image");
		return element("span", {}, picture(src), drop);
	}));
}
function grow() {
	$("text").style.height = "auto";
	$("text").style.height = $("text").scrollHeight + 2 + "px";
}

// ---- settings

function apply() {
	if (settings.theme) document.documentElement.dataset.theme = settings.theme;
	else delete document.documentElement.dataset.theme;
	$("policy").textContent = settings.kv ? "memory: " + settings.kv : "";
}
for (const name of fields) {
	$(name).value = settings[name];
	$(name).oninput = () => {
		if (numbers.includes(name) && !$(name).validity.valid) return;
		settings[name] = $(name).value;
		apply(), save();
	};
}

$("ask").onsubmit = e => (e.preventDefault(), send());
$("stop").onclick = () => abort && abort.abort();
$("new").onclick = () => {
	if (!abort) new_chat(), save(), draw(), $("text").focus(), document.body.classList.remove("listing");
};
$("find").oninput = draw_list;
$("open").onclick = () => $("settings").showModal();
$("menu").onclick = () => (document.body.classList.add("listing"), $("new").focus());
$("close").onclick = $("shade").onclick = () => document.body.classList.remove("listing");
$("forget").onclick = () => ask("Delete all conversations?", () => {
	chats = [];
	new_chat(), save(), draw(), $("settings").close();
});
$("attach").onclick = () => $("files").click();
$("files").onchange = () => (add_images([...$("files").files]), $("files").value = "", $("text").focus());
const takes = e => !$("attach").hidden && e && [...e.items].some(i => i.kind === "file");
document.onpaste = e => {
	// office programs put a picture of a copied text beside it
	if (takes(e.clipboardData) && !e.clipboardData.types.includes("text/plain"))
		e.preventDefault(), add_images([...e.clipboardData.files]);
};
document.ondragover = e => takes(e.dataTransfer) && e.preventDefault();
document.ondrop = e => {
	if (takes(e.dataTransfer)) e.preventDefault(), add_images([...e.dataTransfer.files]);
};
$("text").oninput = grow;
$("text").onkeydown = e => {
	if (e.key === "Enter" && !e.shiftKey && !e.isComposing) e.preventDefault(), send();
};
document.onkeydown = e => {
	if (e.key !== "Escape" || document.querySelector("dialog[open]")) return;
	if (abort) abort.abort();
	document.body.classList.remove("listing");
};

// ---- the server

async function show_memory() {
	try {
		const r = await fetch("/metrics", {headers: headers()});
		const text = r.ok ? await r.text() : "";
		const value = name => +(text.split("\n").find(l => l.startsWith(name + " ")) || "").split(" ")[1] || 0;
		const sizes = Object.keys(kinds).map(k => [k, value(`kvrun_kv_bytes{kind="${k}"}`)]);
		const used = value("kvrun_kv_used_bytes"), budget = value("kvrun_kv_budget_bytes");
		const sum = sizes.reduce((s, [, n]) => s + n, 0);
		sizes.at(-1)[1] = Math.max(0, used - sum); // of pages that are partly filled
		const most = Math.max(1, used, sum);
		$("bar").replaceChildren(...sizes.map(([k, n]) => {
			const i = element("i", {title: kinds[k] + " " + bytes(n)});
			i.style.width = 100 * n / most + "%", i.style.background = `var(--${k})`;
			return i;
		}));
		const shown = sizes.filter(([, n]) => n);
		$("legend").replaceChildren(`${bytes(Math.max(used, sum))} of ${bytes(budget)}`, ...shown.map(([k, n]) => {
			const square = element("i");
			square.style.background = `var(--${k})`;
			return element("span", {}, square, `${kinds[k]} ${bytes(n)}`);
		}));
	} catch { $("legend").textContent = "The server does not answer."; }
	setTimeout(show_memory, document.hidden ? 5000 : abort ? 500 : 2000);
}
async function show_model() {
	const r = await fetch("/v1/models", {headers: headers()});
	if (!r.ok) return;
	const m = (await r.json()).data[0];
	$("model").textContent = document.title = m.id;
	$("model").title = m.meta.device;
	$("kv").placeholder = m.meta.kv;
	$("attach").hidden = !m.meta.reads_images;
}
$("key").onchange = show_model;
if (!chat) chats.length ? chat = chats[0] : new_chat();
apply(), draw(), to_end();
show_model();
show_memory();
