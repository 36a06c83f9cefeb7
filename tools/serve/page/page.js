// What one does: conversations, messages, settings.
"use strict";

function ask(question, yes, word = "Delete") {
	$("question").textContent = question;
	$("yes").textContent = word;
	$("confirm").onclose = () => $("confirm").returnValue === "yes" && yes();
	$("confirm").returnValue = "";
	$("confirm").showModal();
}

// ---- conversations

function go(c) {
	if (chat) keep_draft();
	chat = c, editing = -1;
	remember_chat(), show_draft(), draw(), to_end();
	document.body.classList.remove("listing");
}
function forget(c) { // what is kept of it goes elsewhere, or has gone
	const run = running.get(c);
	chats = chats.filter(o => o !== c);
	running.delete(c), failures.delete(c);
	if (run) run.abort.abort();
	if (c === chat) go(chats[0] || add_chat());
	else draw_list();
	drop_draft(c);
}
function remove(c) {
	forget(c);
	write(local, place_of(c.id), null);
}
function rename(c) {
	$("name").value = title_of(c);
	$("naming").onclose = () => {
		if ($("naming").returnValue !== "yes") return;
		c.title = one_line($("name").value);
		save(c), draw_list();
	};
	$("naming").returnValue = "";
	$("naming").showModal();
	$("name").select();
}
const copies = messages => messages.map(m => ({...m}));
function fork(i) { go_to_copy(i + 1, title_of(chat) + " (fork)"); }
function go_to_copy(messages, title) {
	const c = add_chat(copies(chat.messages.slice(0, messages)), title);
	save(c), go(c);
}
function export_chats() {
	const text = JSON.stringify({conversations: chats.filter(c => c.messages.length)}, null, 1);
	const link = element("a", {href: URL.createObjectURL(new Blob([text], {type: "application/json"})),
		download: "conversations.json"});
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
async function import_chats(file) {
	let list = [];
	try {
		const all = JSON.parse(await file.text());
		const given = Array.isArray(all) ? all : all.conversations || all.chats;
		list = given.map(sane_chat).filter(c => c && c.messages.length);
	} catch {}
	let added = 0;
	for (const c of list) {
		const same = chats.find(o => o.id === c.id);
		if (same && JSON.stringify(same.messages) === JSON.stringify(c.messages)) continue;
		if (same) c.id = new_id(); // neither is lost
		chats.push(c), save(c), ++added;
	}
	chats.sort(by_time), draw_list();
	$("moved").textContent = list.length ? `${added} of ${list.length} conversations added; the others were there.` :
		"This file holds no conversations.";
}

// ---- messages

function edit(i) {
	if (running.has(chat)) return;
	editing = i;
	edited = i < 0 ? "" : chat.messages[i].content;
	draw();
}
// Answers question i anew. Nothing is lost: an answer becomes another version; an edited question that something comes
// behind is asked in a copy of the conversation.
function again(i, text) {
	if (running.has(chat) || i < 0) return;
	const m = chat.messages[i], behind = chat.messages.length - i - 1;
	if (text !== undefined && !text.trim() && !m.images) return;
	editing = -1;
	if (behind > (text === undefined ? 1 : 0))
		go_to_copy(i + 1, i || chat.title ? title_of(chat).replace(/ \(edited\)$/, "") + " (edited)" : "");
	if (text !== undefined) chat.messages[i] = {...m, content: text};
	answer(chat, i + 1);
}
function show_version(i, to) {
	if (running.has(chat)) return;
	const {others, at, ...one} = chat.messages[i];
	const all = [...others.slice(0, at), one, ...others.slice(at)];
	const [next] = all.splice(to, 1);
	chat.messages[i] = {...next, others: all, at: to};
	save(chat), draw();
}
function send() {
	const mine = chat;
	if (reads.has(mine)) return void reads.get(mine).then(() => mine === chat && send());
	const text = with_texts($("text").value.trim());
	if (!text && !images.length || running.has(chat)) return;
	chat.messages.push({role: "user", content: text, ...images.length && {images}});
	$("text").value = "";
	images = [], texts = [], editing = -1;
	keep_draft(), grow(), draw_files();
	answer(chat, chat.messages.length);
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
function show_settings() {
	for (const name of fields) $(name).value = settings[name];
}
function open_settings() {
	$("moved").textContent = "";
	$("settings").showModal();
}
for (const name of fields)
	$(name).oninput = () => {
		if (!$(name).validity.valid) return; // it is marked, and gone when the dialog is closed
		settings[name] = $(name).value;
		apply(), save_settings();
	};
$("settings").onclose = show_settings;
$("key").value = saved_key();
$("remember").checked = !!read(local, "kvrun:key");
$("key").onchange = $("remember").onchange = () => (save_key(), show_model());

$("ask").onsubmit = e => (e.preventDefault(), send());
function stop() {
	const run = running.get(chat);
	if (run) run.abort.abort();
}
$("stop").onclick = stop;
$("new").onclick = () => { // one empty chat at most: with what was written in it
	const c = chats.find(c => !c.messages.length) || add_chat();
	touch(c), go(c), $("text").focus();
};
$("find").oninput = draw_list;
$("open").onclick = open_settings;
$("menu").onclick = () => (document.body.classList.add("listing"), $("new").focus());
$("close").onclick = $("shade").onclick = () => document.body.classList.remove("listing");
$("forget").onclick = () => ask("Delete all conversations?", () => {
	for (const c of chats.filter(c => c.messages.length)) remove(c);
	$("settings").close();
});
$("export").onclick = export_chats;
$("import").onclick = () => $("kept").click();
$("kept").onchange = () => (import_chats($("kept").files[0]), $("kept").value = "");
$("unnamed").onclick = () => $("naming").close();
$("attach").onclick = () => $("files").click();
$("files").onchange = () => (add_files([...$("files").files]), $("files").value = "", $("text").focus());
const takes = e => e && [...e.items].some(i => i.kind === "file") && !document.querySelector("dialog[open]");
document.onpaste = e => {
	// office programs put a picture of a copied text beside it
	if (takes(e.clipboardData) && !e.clipboardData.types.includes("text/plain"))
		e.preventDefault(), add_files([...e.clipboardData.files]);
};
document.ondragover = e => takes(e.dataTransfer) && e.preventDefault();
document.ondrop = e => {
	if (takes(e.dataTransfer)) e.preventDefault(), add_files([...e.dataTransfer.files]);
};
$("text").oninput = () => (grow(), keep_draft());
$("text").onkeydown = e => {
	if (e.key === "Enter" && !e.shiftKey && !composes(e)) e.preventDefault(), send();
};
document.onkeydown = e => {
	if (e.key !== "Escape" || composes(e) || document.querySelector("dialog[open]")) return;
	stop();
	document.body.classList.remove("listing");
};
document.addEventListener("visibilitychange", () => document.hidden || show_model());
addEventListener("focus", show_model);

show_settings(), apply();
go(first_chat());
show_model();
show_memory();
