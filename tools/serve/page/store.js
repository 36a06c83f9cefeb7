// What the browser keeps: each conversation under a key of its own, settings, drafts, the server's key. What another
// tab changes arrives as an event.
"use strict";
const $ = id => document.getElementById(id);
const numbers = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];
const fields = [...numbers, "stops", "system", "kv", "theme"];
const place_of = id => "kvrun:chat:" + id;
const local = (() => { try { return localStorage; } catch { return null; } })();
const session = (() => { try { return sessionStorage; } catch { return null; } })();

function read(store, name) {
	try { return JSON.parse(store.getItem(name)); } catch { return null; }
}
function write(store, name, value) {
	try {
		value === null ? store.removeItem(name) : store.setItem(name, JSON.stringify(value));
		return true;
	} catch { return false; }
}

// ---- conversations

const string_of = value => typeof value === "string" ? value : "";
function sane_message(m) { // none, or one that has what the page reads
	if (!m || m.role !== "user" && m.role !== "assistant") return [];
	const sane = {...m, content: string_of(m.content)};
	for (const name of ["reasoning", "note"])
		if (name in sane) sane[name] = string_of(sane[name]);
	if ("images" in sane) {
		const list = Array.isArray(sane.images) ? sane.images : []; // and sounds
		sane.images = list.filter(i => /^data:(image|audio)\//.test(string_of(i)));
		if (!sane.images.length) delete sane.images;
	}
	if ("others" in sane) {
		sane.others = Array.isArray(sane.others) ? sane.others.flatMap(sane_message) : [];
		sane.at = Math.min(Math.max(0, +sane.at || 0), sane.others.length);
	}
	return [sane];
}
function sane_chat(c) {
	if (!c || !string_of(c.id) || !Array.isArray(c.messages)) return null;
	return {...c, title: string_of(c.title), messages: c.messages.flatMap(sane_message), time: +c.time || 0};
}
const by_time = (a, b) => b.time - a.time;

function move_old_list() { // all conversations were once under one key
	const old = read(local, "kvrun");
	if (!old) return;
	write(local, "kvrun", null); // there may be no room for both
	const list = (Array.isArray(old.chats) ? old.chats : []).map(sane_chat).filter(c => c && c.messages.length);
	list.forEach((c, i) => { // their order was that of the list
		c.time = Math.min(c.time || Date.now(), i ? list[i - 1].time - 1 : Infinity);
		if (local && local.getItem(place_of(c.id)) === null) put(c);
	});
	if (!read(local, "kvrun:settings")) write(local, "kvrun:settings", old.settings || {});
	write(local, "kvrun:last", string_of(old.chat) || null);
}
function kept_chats() {
	const list = [];
	for (let i = 0; local && i < local.length; ++i)
		if (local.key(i).startsWith(place_of(""))) list.push(sane_chat(read(local, local.key(i))));
	return list.filter(c => c && c.messages.length).sort(by_time);
}
function put(c) {
	for (const [without, said] of [[null, "Conversations are kept in this browser."],
		["images", "This browser keeps no more images: delete conversations, or these are gone with the page."]]) {
		const text = JSON.stringify(c, (key, value) => key === without ? undefined : value);
		try {
			local.setItem(place_of(c.id), text);
			$("store").textContent = said;
			return;
		} catch {}
	}
	$("store").textContent = "This browser keeps no more conversations: delete some, or these are gone with the page.";
}

move_old_list();
let chats = kept_chats(), chat = null;
const settings = Object.fromEntries(fields.map(name => [name, ""]));
function take_settings(from) {
	for (const name of fields) settings[name] = string_of(from && from[name]);
}
take_settings(read(local, "kvrun:settings"));

function save(c) {
	if (chats.includes(c) && c.messages.length) put(c); // one that was deleted stays deleted
}
function save_settings() { write(local, "kvrun:settings", settings); }

// crypto.randomUUID is for secure contexts only
const new_id = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
function add_chat(messages, title, id) {
	chats.unshift({id: id || new_id(), title: title || "", messages: messages || [], time: Date.now()});
	return chats[0];
}
function touch(c) { // it becomes the first of the list
	c.time = Date.now();
	chats = [c, ...chats.filter(o => o !== c)];
}
function remember_chat() { // a tab keeps its own one over a reload; a new tab begins with the latest
	write(session, "kvrun:chat", chat.id);
	write(local, "kvrun:last", chat.id);
}
function first_chat() {
	const mine = string_of(read(session, "kvrun:chat")), last = read(local, "kvrun:last");
	if (mine) return chats.find(c => c.id === mine) || add_chat([], "", mine);
	return chats.find(c => c.id === last) || chats[0] || add_chat();
}
const one_line = text => text.replace(/\s+/g, " ").trim();
const title_of = c => one_line(c.title ||
	(c.messages.find(m => m.role === "user") || {content: "New chat"}).content.slice(0, 120)) || "Image";

// ---- drafts: of this tab, one for each conversation

const draft_files = new Map();
function keep_draft() {
	write(session, "kvrun:draft:" + chat.id, $("text").value || null);
	draft_files.set(chat.id, {images, texts});
}
function show_draft() {
	$("text").value = string_of(read(session, "kvrun:draft:" + chat.id));
	({images, texts} = draft_files.get(chat.id) || {images: [], texts: []});
	grow(), draw_files();
}
function drop_draft(c) {
	write(session, "kvrun:draft:" + c.id, null);
	draft_files.delete(c.id);
}

// ---- the server's key

function saved_key() { return string_of(read(session, "kvrun:key")) || string_of(read(local, "kvrun:key")); }
function save_key() {
	const key = $("key").value || null;
	write(session, "kvrun:key", key);
	write(local, "kvrun:key", $("remember").checked ? key : null);
}

// ---- other tabs

function changed_elsewhere(id, text) {
	const mine = chats.find(c => c.id === id);
	if (text === null) {
		if (mine && mine.messages.length) forget(mine);
		return;
	}
	let other = null;
	try { other = sane_chat(JSON.parse(text)); } catch {}
	if (!other || !other.messages.length) return;
	const run = running.get(mine);
	if (mine && run) {
		const before = mine.messages.slice(0, run.at);
		if (other.messages.length > run.at + 1 ||
			JSON.stringify(other.messages.slice(0, run.at)) !== JSON.stringify(before)) {
			// both tabs went on with it: this one's answer goes into a conversation of its own
			mine.title = title_of(mine) + " (fork)";
			mine.id = new_id();
			chats.push(other);
			if (mine === chat) remember_chat();
			save(mine);
		} else {
			mine.title = other.title;
		}
	} else if (mine && mine.messages.length) {
		Object.assign(mine, other);
	} else {
		if (mine) mine.id = new_id(); // nothing was said in this one yet
		if (mine && mine === chat) remember_chat();
		chats.push(other);
	}
	chats.sort(by_time);
	if (chat === mine && !run && chat.messages.length) {
		const follow = at_end();
		draw();
		if (follow) to_end();
	} else {
		draw_list();
	}
}
addEventListener("storage", e => {
	if (e.storageArea !== local) return;
	if (e.key === null) {
		for (const c of chats.filter(c => c.messages.length)) forget(c);
	} else if (e.key === "kvrun:settings") {
		take_settings(read(local, "kvrun:settings"));
		if (!$("settings").open) show_settings();
		apply();
	} else if (e.key.startsWith(place_of(""))) {
		changed_elsewhere(e.key.slice(place_of("").length), e.newValue);
	}
});
