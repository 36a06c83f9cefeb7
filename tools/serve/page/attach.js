// Files for the next message: images, which are made smaller, sounds, and texts, which are sent as part of the
// message.
"use strict";
let images = [], texts = []; // of the next message: addresses that hold images and sounds (data:); {name, text}

// Models read images of about this many pixels along an edge, and the browser keeps little.
const longest_edge = 1280;
const longest_text = 1 << 20;
const longest_sound = 5 << 20; // in base64 it fits into a request
const is_sound = file => file.type.startsWith("audio/") || /\.(wav|flac|ogg|opus|mp3)$/i.test(file.name);
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
async function as_sound(file) {
	if (file.size > longest_sound) throw new Error(`is larger than ${bytes(longest_sound)}.`);
	const kind = file.type.startsWith("audio/") ? file.type : "audio/" + file.name.replace(/.*\./, "").toLowerCase();
	const address = await new Promise((resolve, reject) => {
		const reader = new FileReader();
		reader.onload = () => resolve(reader.result), reader.onerror = () => reject(new Error("cannot be read."));
		reader.readAsDataURL(file);
	});
	return address.replace(/^[^,]*/, `data:${kind};base64`);
}
async function as_text(file) {
	if (file.size > longest_text) throw new Error(`is larger than ${bytes(longest_text)}.`);
	const text = await file.text();
	if (text.includes("\0") || text.includes("\ufffd")) throw new Error("is neither a text, an image nor a sound.");
	return text;
}
const reads = new Map(); // chat -> promise: its files are being read; its message waits for them
function add_files(files) {
	const mine = chat, before = reads.get(mine);
	const all = (async () => (await before, read_files(mine, files)))().finally(() => {
		if (reads.get(mine) === all) reads.delete(mine);
	});
	reads.set(mine, all);
	return all;
}
async function read_files(mine, files) {
	for (const file of files) {
		const name = file.name || "That";
		const to = mine === chat ? {images, texts} : draft_files.get(mine.id) || {images: [], texts: []};
		try {
			if (is_sound(file) && !reads_audio)
				fail({text: `${name} is a sound, and this model reads none.`});
			else if (is_sound(file))
				to.images.push(await as_sound(file));
			else if (!file.type.startsWith("image/") || file.type === "image/svg+xml")
				to.texts.push({name, text: await as_text(file)});
			else if (!reads_images)
				fail({text: `${name} is an image, and this model reads none.`});
			else
				to.images.push(await as_address(file).catch(() => {
					throw new Error("is no image that this browser reads.");
				}));
		} catch (e) { fail({text: `${name} ${e.message}`}); }
		draw_files();
	}
}
function draw_files() {
	const shown = (list, face) => list.map((one, i) => {
		const drop = tool("✕", () => (list.splice(i, 1), draw_files(), $("text").focus()));
		drop.setAttribute("aria-label", "Remove this file");
		return element("span", {}, face(one), drop);
	});
	$("images").replaceChildren(...shown(images, medium),
		...shown(texts, t => element("span", {className: "file", textContent: t.name, title: bytes(t.text.length)})));
}
// A message with its texts, each between fences that it does not contain.
function with_texts(message) {
	const fenced = texts.map(({name, text}) => {
		const longest = Math.max(2, ...(text.match(/`+/g) || []).map(run => run.length));
		const fence = "`".repeat(longest + 1);
		return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
	});
	return [...message ? [message] : [], ...fenced].join("\n\n");
}
