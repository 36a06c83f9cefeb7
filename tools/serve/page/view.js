// Drawing: the conversation, the list of conversations, what went wrong.
"use strict";
let editing = -1, edited = ""; // the message that is edited, and its text so far
const failures = new Map(); // of conversations: {text, key}

function bytes(n) {
	let u = 0;
	for (; n >= 1024 && u < 4; ++u) n /= 1024;
	return n.toFixed(u && n < 100 ? 1 : 0) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][u];
}
function tool(name, action, className = "") {
	return element("button", {type: "button", textContent: name, className, onclick: e => action(e.target)});
}
const at_end = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;
function to_end() { $("log").scrollTop = $("log").scrollHeight; }
// Whether a key belongs to the input method that composes characters: Safari sends the last one behind the composition.
const composes = e => e.isComposing || e.keyCode === 229;
function selects(node) { // whether text in it is selected
	const s = getSelection();
	return !!node && !!s && !s.isCollapsed && s.containsNode(node, true);
}

const medium = src => src.startsWith("data:audio/") ? element("audio", {src, controls: true, title: "Sound"}) :
	element("img", {src, alt: "Image"});
// A question that was left without an answer is not sent with a later one: templates want roles to alternate.
const left_out = (messages, i) => messages[i].role === "user" && !!messages[i + 1] && messages[i + 1].role === "user";

function make_box(m) {
	const box = element("div", {className: "message " + m.role}, element("div", {className: "body", dir: "auto"}));
	box.setAttribute("aria-label", m.role === "user" ? "You" : "Answer");
	return box;
}
// Puts into a box what its message says. What was there already stays, with what is selected in it.
function fill(box, m) {
	const body = box.querySelector(".body");
	if (m.role === "user") {
		body.replaceChildren(...(m.images || []).map(medium), m.content);
		return;
	}
	let fold = box.querySelector(".reasoning");
	if (m.reasoning) {
		if (!fold) {
			fold = element("details", {className: "reasoning"}, element("summary", {textContent: "Reasoning"}),
				element("div", {dir: "auto"}));
			fold.open = !m.content;
			body.before(fold);
		}
		grow_text(fold.lastChild, m.reasoning);
		if (m.content && !fold.dataset.done) fold.dataset.done = 1, fold.open = false;
	}
	if (!selects(body.lastElementChild || body.lastChild)) show_markdown(body, m.content);
}
function edit_box(m, i) {
	const box = make_box(m);
	const text = element("textarea", {className: "edit", dir: "auto", value: edited,
		rows: Math.min(12, edited.split("\n").length + 1)});
	text.setAttribute("aria-label", "Edit the message");
	const leave = () => edited === m.content ? edit(-1) : ask("Discard the changed text?", () => edit(-1), "Discard");
	text.oninput = () => edited = text.value;
	text.onkeydown = e => {
		if (composes(e)) return;
		if (e.key === "Escape") e.stopPropagation(), e.preventDefault(), leave();
		if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) again(i, text.value);
	};
	box.querySelector(".body").replaceWith(text, element("div", {className: "row"},
		tool("Cancel", leave), tool("Send", () => again(i, text.value))));
	setTimeout(() => text.focus());
	return box;
}
function versions(m, i) { // of an answer
	if (m.role !== "assistant" || !m.others || !m.others.length) return [];
	const turn = (name, label, to) => {
		const b = tool(name, () => show_version(i, to), "changes");
		b.setAttribute("aria-label", label);
		b.disabled = to < 0 || to > m.others.length;
		return b;
	};
	return [turn("‹", "Earlier version", m.at - 1),
		element("span", {className: "changes", textContent: `${m.at + 1}/${m.others.length + 1}`}),
		turn("›", "Later version", m.at + 1)];
}
function message(m, i) {
	const run = running.get(chat);
	if (run && run.m === m) return run.box;
	if (i === editing) return edit_box(m, i);
	const box = make_box(m), last = i === chat.messages.length - 1;
	fill(box, m);
	const tools = element("div", {className: "tools"}, tool("Copy", b => copy(b, m.content)));
	if (m.role === "user") tools.append(tool("Edit", () => edit(i), "changes"));
	if (last) tools.append(tool("Retry", () => again(m.role === "user" ? i : i - 1), "changes retry"));
	if (last && m.partial && m.content) tools.append(tool("Continue", () => answer(chat, i, true), "changes"));
	tools.append(...versions(m, i), tool("Fork", () => fork(i)));
	box.append(tools);
	const note = left_out(chat.messages, i) ? "left without an answer: not sent with later messages" : m.note;
	if (note) box.append(element("div", {className: "note", textContent: note}));
	return box;
}
function draw() {
	const log = $("log"), run = running.get(chat);
	log.replaceChildren(...chat.messages.map(message));
	if (run && !run.begun) log.append(run.box);
	if (!chat.messages.length)
		log.append(locked ? element("p", {className: "hello", textContent: "The server asks for its key. "},
			tool("Settings", open_settings)) : element("p", {className: "hello",
			textContent: "Ask something. Enter sends, Shift-Enter begins a line, Esc stops."}));
	const failure = failures.get(chat);
	if (failure) fail(failure);
	draw_list(), draw_state();
}
function draw_state() {
	const busy = running.has(chat);
	$("send").hidden = busy;
	$("stop").hidden = !busy;
	$("log").classList.toggle("busy", busy);
	const tokens = (chat.messages.findLast(m => m.tokens) || {}).tokens;
	$("context").textContent = tokens ? `${tokens} of ${context || "?"} tokens` : "";
}
// Once an answer has ended: its box gets its tools when nothing is selected in it.
function end_box(box, m) {
	if (!box.isConnected) return;
	if (selects(box)) setTimeout(end_box, 300, box, m);
	else box.replaceWith(message(m, chat.messages.indexOf(m)));
}
function draw_list() {
	const word = $("find").value.toLowerCase();
	const has = c => !word || title_of(c).toLowerCase().includes(word) ||
		c.messages.some(m => m.content.toLowerCase().includes(word));
	$("chats").replaceChildren(...chats.filter(has).map(c => {
		const name = title_of(c);
		const mark = (/ \((fork|edited)\)$/.exec(name) || [""])[0]; // is seen where the name is cut
		const title = element("button", {type: "button", className: "title", title: name, onclick: () => go(c)},
			element("span", {dir: "auto", textContent: name.slice(0, name.length - mark.length)}), mark);
		const button = (text, what, className, action) => {
			const b = element("button", {type: "button", className, textContent: text, title: what, onclick: action});
			b.setAttribute("aria-label", what + " " + name);
			return b;
		};
		if (c === chat) title.setAttribute("aria-current", "true");
		const classes = ["chat", ...c === chat ? ["now"] : [], ...running.has(c) ? ["busy"] : []];
		return element("div", {className: classes.join(" ")}, title,
			element("span", {className: "ends"}, button("✎", "Rename", "rename", () => rename(c)),
				button("✕", "Delete", "drop", () => ask(`Delete “${name.slice(0, 60)}”?`, () => remove(c)))));
	}));
}
function fail({text, key}) {
	$("log").append(element("p", {className: "error", textContent: text + " "},
		...key ? [tool("Settings", open_settings)] : []));
	$("log").lastChild.setAttribute("role", "alert");
	to_end();
}
