// Markdown of an answer as nodes: marked reads it, highlight.js colours code. Where the page was built without them,
// text stays text.
"use strict";

function element(tag, properties, ...children) {
	const e = Object.assign(document.createElement(tag), properties);
	e.append(...children);
	return e;
}

async function copy(button, text) {
	const before = button.textContent;
	try {
		await navigator.clipboard.writeText(text);
		button.textContent = "Copied";
	} catch { // no clipboard outside of secure contexts
		const t = element("textarea", {value: text});
		document.body.append(t);
		t.select();
		button.textContent = document.execCommand("copy") ? "Copied" : "Not copied";
		t.remove();
	}
	setTimeout(() => button.textContent = before, 1500);
}

function code_block(code) {
	const language = (/language-([\w+#-]+)/.exec(code.className) || [])[1] || "";
	const text = code.textContent;
	if (language && typeof hljs !== "undefined" && hljs.getLanguage(language) && text.length < 100000)
		code.innerHTML = (parseInt(hljs.versionString) >= 10 ? hljs.highlight(text, {language, ignoreIllegals: true}) :
			hljs.highlight(language, text, true)).value;
	const button = element("button", {type: "button", textContent: "Copy"});
	button.onclick = () => copy(button, text.replace(/\n$/, ""));
	const head = element("div", {className: "head"}, element("span", {textContent: language || "text"}), button);
	return element("div", {className: "block", dir: "ltr"}, head, element("pre", {tabIndex: 0}, code));
}

// Tags of an answer that are kept, with their attributes. What is not here gives its text.
const allowed = {a: ["href", "title"], code: ["class"], ol: ["start"], th: ["align"], td: ["align"]};
for (const tag of ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "pre", "blockquote",
	"ul", "li", "table", "thead", "tbody", "tr"]) allowed[tag] = [];

// A copy of an inert node's children, made of nothing but what is allowed: no text becomes HTML again.
function copy_children(from, into) {
	for (const node of from.childNodes) {
		if (node.nodeType === Node.TEXT_NODE) into.append(node.data);
		if (node.nodeType !== Node.ELEMENT_NODE) continue;
		const tag = node.localName;
		if (tag === "img") { // nothing is loaded from where an answer says
			into.append(`[picture: ${node.alt || node.getAttribute("src")}]`);
		} else if (tag === "input") {
			into.append(node.hasAttribute("checked") ? "☑ " : "☐ ");
		} else if (Object.hasOwn(allowed, tag)) {
			const e = document.createElement(tag);
			for (const name of allowed[tag])
				if (node.hasAttribute(name)) e.setAttribute(name, node.getAttribute(name));
			copy_children(node, e);
			into.append(e);
		} else if (tag !== "script" && tag !== "style") {
			copy_children(node, into);
		}
	}
	return into;
}

// Formulas stay as they were written: to Markdown, \( would be an escaped bracket, and _ an emphasis. A dollar begins
// one only if no space follows, and ends one only behind no space and before no digit: prices are none.
const in_line = /^(?:\\\([^]+?\\\)|\\\[[^]+?\\\]|\$\$[^]+?\$\$|\$(?![\s$])(?:[^$\n\\`]|\\.)*?(?<!\s)\$(?![\d$]))/;
const in_block = /^ {0,3}(?:\\\[[^]+?\\\]|\$\$[^]+?\$\$)[ \t]*(?:\n+|$)/;
const formula = (name, level, rule, start) => ({
	name, level,
	start: text => { const at = text.search(start); return at < 0 ? undefined : at; },
	tokenizer(text) {
		const found = rule.exec(text);
		if (found && !/\n[ \t]*\n/.test(found[0].trim())) return {type: name, raw: found[0], text: found[0].trim()};
	},
	renderer: token => {
		const code = `<code class="math">${escape_html(token.text)}</code>`;
		return level === "block" ? `<p>${code}</p>` : code;
	},
});
const signs = {"&": "&amp;", "<": "&lt;", ">": "&gt;"};
const escape_html = text => text.replace(/[&<>]/g, c => signs[c]);
if (typeof marked !== "undefined") { // HTML in an answer is shown, not followed
	const escape = html => escape_html(html.text ?? html); // from marked 13 on a token
	marked.use({gfm: true, breaks: true, mangle: false, headerIds: false, renderer: {html: escape}, extensions: [
		formula("formulas", "block", in_block, /\n {0,3}(?:\\\[|\$\$)/),
		formula("formula", "inline", in_line, /\\[([]|\$/)]});
}

// Adds to a text what has come since: what is selected in it stays so.
function grow_text(into, text) {
	const node = into.firstChild;
	if (node && node.nodeType === Node.TEXT_NODE && !node.nextSibling && text.startsWith(node.data))
		node.appendData(text.slice(node.length));
	else
		into.textContent = text;
}
// Gives a node these children. The first ones that are equal stay.
function renew(into, nodes) {
	let same = 0;
	const shown = into.childNodes; // live
	while (same < nodes.length && same < shown.length && shown[same].isEqualNode(nodes[same])) ++same;
	while (shown.length > same) into.lastChild.remove();
	into.append(...nodes.slice(same));
}

// What `text` says, as nodes. Throws where it is nested too deeply.
function markdown(text) {
	const inert = document.createElement("template"); // neither runs nor loads anything
	inert.innerHTML = marked.parse(text + "\n"); // without a line's end it misses code that is not closed yet
	const nodes = copy_children(inert.content, document.createDocumentFragment());
	for (const a of nodes.querySelectorAll("a")) {
		if (/^(https?|mailto):/i.test(a.getAttribute("href") || "")) a.target = "_blank", a.rel = "noopener noreferrer";
		else a.replaceWith(...a.childNodes); // what cannot be followed does not look as if it could
	}
	// each block begins on the side of its own script
	for (const e of nodes.querySelectorAll("p, h1, h2, h3, h4, h5, h6, ul, ol, blockquote")) e.dir = "auto";
	for (const t of nodes.querySelectorAll("table")) {
		const box = element("div", {className: "scroll", dir: "auto"});
		t.replaceWith(box);
		box.append(t);
	}
	for (const p of nodes.querySelectorAll("pre")) {
		const code = p.querySelector("code");
		if (code) p.replaceWith(code_block(code));
	}
	return nodes;
}

// Into `into` what `text` says; the text itself where it cannot be read.
function show_markdown(into, text) {
	let nodes = null;
	if (typeof marked !== "undefined") try {
		nodes = markdown(text);
	} catch {}
	into.style.whiteSpace = nodes ? "" : "pre-wrap";
	if (nodes) renew(into, [...nodes.childNodes]);
	else grow_text(into, text);
}
