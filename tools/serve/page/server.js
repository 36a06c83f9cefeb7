// What the server says of itself: its model, and the memory of conversations.
"use strict";
const kinds = {f16: "f16", codes: "codes", params: "scales", overhead: "overhead", unused: "free in pages"};
let context = 0, reads_images = false, reads_audio = false;
let locked = false; // it asks for a key that the page does not have

function headers() {
	const h = {"Content-Type": "application/json"};
	if ($("key").value) h.Authorization = "Bearer " + $("key").value;
	return h;
}
function draw_memory(text) {
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
}
// Of a route: the page may be below a path, by --api-prefix or by a proxy.
function address(route) {
	return location.pathname.replace(/\/+$/, "") + route;
}
async function show_memory() {
	try {
		const r = await fetch(address("/metrics"), {headers: headers()});
		if (r.ok) draw_memory(await r.text());
		else $("legend").textContent = r.status === 401 ? "The server asks for its key." : "The server does not tell.";
	} catch { $("legend").textContent = "The server does not answer."; }
	setTimeout(show_memory, document.hidden ? 5000 : running.size ? 500 : 2000);
}
async function show_model() {
	const r = await fetch(address("/v1/models"), {headers: headers()}).catch(() => null);
	if (!r) return; // the memory's line says that the server does not answer
	if (locked !== (r.status === 401)) {
		locked = !locked;
		if (!chat.messages.length) draw();
	}
	if (!r.ok) return;
	const m = (await r.json()).data[0];
	$("model").textContent = document.title = m.id;
	$("model").title = m.meta.device;
	$("kv").placeholder = m.meta.kv;
	context = m.meta.n_ctx;
	reads_images = m.meta.reads_images, reads_audio = m.meta.reads_audio;
	$("attach").textContent = reads_images || reads_audio ? "Add" : "Text";
	draw_state();
}
