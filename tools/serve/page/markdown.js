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

if (typeof marked !== "undefined") { // HTML in an answer is shown, not followed
	const signs = {"&": "&amp;", "<": "&lt;", ">": "&gt;"};
	const escape = html => (html.text ?? html).replace(/[&<>]/g, c => signs[c]); // from marked 13 on a token
	marked.use({gfm: true, breaks: true, mangle: false, headerIds: false, renderer: {html: escape}});
}

// Into `into` what `text` says.
function show_markdown(into, text) {
	if (typeof marked === "undefined") {
		into.textContent = text;
		into.style.whiteSpace = "pre-wrap";
		return;
	}
	const inert = document.createElement("template"); // neither runs nor loads anything
	inert.innerHTML = marked.parse(text + "\n"); // without a line's end it misses code that is not closed yet
	const nodes = copy_children(inert.content, document.createDocumentFragment());
	for (const a of nodes.querySelectorAll("a")) {
		if (!/^(https?|mailto):/i.test(a.getAttribute("href") || "")) a.removeAttribute("href");
		a.target = "_blank", a.rel = "noopener noreferrer";
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
	into.replaceChildren(nodes);
}
