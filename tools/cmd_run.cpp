// kvrun run: continues a prompt with a model; prints the text as it is generated.
#include "engine/api/sampling.h"
#include "engine/core/error.h"
#include "engine/core/json_reader.h"
#include "engine/core/log.h"
#include "engine/core/system/files.h"
#include "engine/core/system/terminal.h"
#include "engine/core/utf8.h"
#include "engine/kv_device/fetch.h"
#include "engine/run/batch.h"
#include "engine/run/stop.h"
#include "models/chat/answer_grammar.h"
#include "models/chat/builtin.h"
#include "models/chat/encode.h"
#include "models/chat/fit.h"
#include "models/grammar/gbnf.h"
#include "models/grammar/schema.h"
#include "tools/args_engine.h"
#include "tools/args_grammar.h"
#include "tools/args_llama.h"
#include "tools/args_says.h"
#include "tools/audio/audio_file.h"
#include "tools/commands.h"
#include "tools/image/image_file.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include "tools/user_files.h"
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <random>
#include <system_error>

namespace kvrun {
namespace {

constexpr size_t kMaxPrompt = size_t(64) << 20;  // bytes
constexpr size_t kMaxTemplate = size_t(1) << 20; // bytes

struct RunArgs : SamplingArgs {
	EngineArgs engine;
	GrammarArgs form;
	DraftArgs draft;
	std::string prompt, file;          // at most one is given; stdin if neither is
	bool has_prompt = false;           // -p is given, possibly empty
	int64_t predict = -1;              // tokens to generate; -1: until the model ends or the context is full
	std::vector<std::string> stops;    // texts that end the answer
	bool chat = false;                 // -p is a message, from which the model's template makes a prompt
	std::string system, chat_template; // with --chat; the template by its name or file
	std::string template_variables;    // with --chat, JSON
	bool no_think = false;             // with --chat
	int64_t keep = 0;                  // with --truncate: first tokens of the prompt that stay
	bool escape = false, no_escape = false;
	MediaArgs media; // in front of the prompt
	bool special = false, no_bos = false, ignore_eos = false, truncate = false, json = false, raw = false;
};

// Reads `fd` to its end, at most kMaxPrompt bytes; drops one newline at the end, which editors add.
std::string read_all(int fd, const std::string& name) {
	std::string text;
	std::vector<char> piece(65536);
	for (;;) {
		const ptrdiff_t n = sys::read_file(fd, piece);
		if (n < 0) fail(Code::Io, "{}: {}", name, std::generic_category().message(errno));
		if (n == 0) break;
		text.append(piece.data(), size_t(n));
		if (text.size() > kMaxPrompt)
			fail(Code::Context, "{} has more than {} bytes, the longest prompt", name, kMaxPrompt);
	}
	check_text(text, name);
	if (!text.empty() && text.back() == '\n') text.pop_back();
	return text;
}

std::string read_prompt(const RunArgs& a) {
	if (a.has_prompt) return a.prompt;
	if (a.file.empty() || a.file == "-") {
		if (sys::is_terminal(0)) std::fputs("reading the prompt from the terminal; end it with Ctrl-D\n", stderr);
		return read_all(0, "standard input");
	}
	const int fd = sys::open_file(a.file, sys::Open::ReadWaiting);
	if (fd < 0) {
		const Code code = errno == ENOENT || errno == ENOTDIR ? Code::NotFound : Code::Io;
		fail(code, "{}: {}", a.file, std::generic_category().message(errno));
	}
	struct Closer {
		int fd;
		~Closer() { sys::close_file(fd); }
	} closer{fd};
	sys::FileInfo info;
	if (sys::stat_file(fd, info) && info.kind == sys::FileKind::Folder)
		fail(Code::Format, "{} is a folder; name a file", a.file);
	return read_all(fd, a.file);
}

struct Media {
	std::vector<Pixels> images;
	std::vector<std::vector<float>> sounds;
};

Media read_media(const MediaArgs& a) {
	Media out;
	for (const std::string& file : a.images) out.images.push_back(read_image(file));
	for (const std::string& file : a.sounds) out.sounds.push_back(read_audio_file(file, kSampleRate));
	return out;
}

struct MediaId {
	const char* part; // the type of a part of a message
	uint64_t id;
};

std::vector<MediaId> add_media(Engine& e, Media media) {
	std::vector<MediaId> ids;
	if (!media.images.empty() && !e.images()->reads_images())
		fail(Code::Unsupported, "--image: this model reads no images: --mmproj has no vision encoder");
	if (!media.sounds.empty() && !e.images()->reads_audio())
		fail(Code::Unsupported, "--audio: this model reads no sounds: --mmproj has no audio encoder");
	for (Pixels& p : media.images) {
		Image image;
		image.width = p.width, image.height = p.height, image.rgb = std::move(p.rgb);
		ids.push_back({"image", e.images()->add(image)});
	}
	for (const std::vector<float>& sound : media.sounds) ids.push_back({"audio", e.images()->add(sound)});
	return ids;
}

// The template that --chat uses: a name, else the text of a file.
ChatTemplate chosen_template(const RunArgs& a) {
	const Gguf file = Gguf::open(a.engine.model);
	const std::string& given = a.chat_template;
	sys::FileInfo info;
	const bool path = given.find_first_of("/.") != given.npos || sys::stat_file(given, /*follow_link=*/true, info);
	const std::vector<std::string> own = model_chat_templates(file);
	if (given.empty() || std::ranges::count(own, given) || !builtin_chat_template(given).empty() || !path)
		return choose_chat_template(file, given, /*tools=*/false);
	std::string text = read_text_file(given, kMaxTemplate);
	if (text.empty()) fail(Code::Format, "{}: is empty, expected a chat template in Jinja", given);
	return ChatTemplate(std::move(text), given);
}

// The prompt as a message of a conversation. form: learns what the template says about the answer.
std::vector<uint32_t> message_tokens(const RunArgs& a, const Engine& e, const ChatTemplate& chat,
                                     const std::string& text, std::span<const MediaId> media, AnswerRules& form) {
	ChatInput in;
	in.messages = Json::array();
	if (!a.system.empty()) in.messages.push_back({{"role", "system"}, {"content", a.system}});
	Json content = text;
	if (!media.empty()) {
		content = Json::array();
		for (const MediaId& m : media) content.push_back({{"type", m.part}, {"id", image_id_text(m.id)}});
		content.push_back({{"type", "text"}, {"text", text}});
	}
	in.messages.push_back({{"role", "user"}, {"content", std::move(content)}});
	mark_images(in.messages);
	set_token_texts(in, e.tokenizer());
	if (!a.template_variables.empty()) in.variables = Json::parse(a.template_variables);
	form.features = chat_features(chat);
	if (a.no_think && !form.features.thinking_switch)
		say_stats("--no-think has no effect: the chat template does not know it");
	else if (a.no_think)
		in.variables["enable_thinking"] = false;
	fit_input(form.features, in);
	const Rendered prompt = chat.render(in);
	form.in_reasoning = opens_reasoning(form.features, prompt);
	form.may_reason = may_reason(form.features, prompt, in.variables);
	return encode_chat(e.tokenizer(), prompt, [&, n = 0u](uint64_t id) mutable { return e.images()->tokens(id, n++); });
}

// Token IDs of the prompt, cut to the context with --truncate.
std::vector<uint32_t> prompt_tokens(const RunArgs& a, const Session& s, const std::optional<ChatTemplate>& chat,
                                    const std::string& text, std::span<const MediaId> media, AnswerRules& form) {
	const Tokenizer& tok = s.engine().tokenizer();
	if (chat) return message_tokens(a, s.engine(), *chat, text, media, form);
	std::vector<uint32_t> ids = tok.encode(text, {.bos = !a.no_bos, .special = a.special});
	size_t at = !ids.empty() && tok.bos() && ids.front() == *tok.bos() ? 1 : 0;
	for (uint32_t n = 0; const MediaId& m : media) {
		const std::vector<uint32_t> rows = s.engine().images()->tokens(m.id, n++);
		ids.insert(ids.begin() + ptrdiff_t(at), rows.begin(), rows.end());
		at += rows.size();
	}
	if (ids.empty())
		fail(Code::Invalid, "the prompt has no tokens and {}; give it some text",
		     a.no_bos ? "--no-bos omits the begin-of-text token" : "this model has no begin-of-text token");
	if (!a.truncate || ids.size() <= s.ctx()) return ids;
	// room for the answer: -n tokens, or a quarter of the context if -n is absent or too large
	const size_t quarter = s.ctx() / 4;
	const size_t room = a.predict >= 0 ? std::min<size_t>(size_t(a.predict), quarter) : quarter;
	const size_t first = tok.bos() && ids.front() == *tok.bos() ? 1 : 0;
	const size_t head = std::min<size_t>(first + size_t(a.keep), s.ctx() - room > 1 ? s.ctx() - room - 1 : first);
	const size_t keep = std::max<size_t>(s.ctx() - room, head + 1);
	const size_t cut = ids.size() - keep;
	ids.erase(ids.begin() + ptrdiff_t(head), ids.begin() + ptrdiff_t(head + cut));
	const std::string behind = a.keep ? fmt::format(" behind {}", head) : "";
	std::fputs(
	    fmt::format("warning: dropped the first {} tokens of the prompt{}, kept {}\n", cut, behind, keep).c_str(),
	    stderr);
	return ids;
}

// Prompt tokens processed, including those of a cancelled block, which are not cached.
double tokens_worked(const GenerateResult& r) { return r.prompt_work * r.prompt_tokens; }

// "context (896 tok, all that the cache's budget holds)"
std::string end_text(const Session& s, StopReason reason) {
	std::string end = stop_reason_name(reason);
	if (reason == StopReason::Context)
		end += fmt::format(" ({} tok{})", s.ctx(), s.ctx_by_budget() ? ", all that the cache's budget holds" : "");
	return end;
}

std::string stats_line(const RunArgs& a, const Session& s, const GenerateResult& r, uint64_t seed, bool lost) {
	// an answer that was stopped early has no speed
	const std::string speed = r.decode_steps
	                              ? fmt::format("  {:.1f} tok/s  {:.1f} ms/tok", per_second(r.decode_steps, r.decode_s),
	                                            r.decode_s * 1e3 / r.decode_steps)
	                              : "";
	const double worked = per_second(tokens_worked(r), r.prefill_s);
	std::string prompt = fmt::format("prompt {} tok", r.prompt_tokens);
	if (r.prompt_read < r.prompt_tokens)
		prompt = fmt::format("prompt {} of {} tok cached, {:.0f} % of the work", r.prompt_read, r.prompt_tokens,
		                     r.prompt_work * 100);
	if (worked > 0) prompt += fmt::format(" {:.1f} tok/s", worked);
	std::string line = fmt::format("{} tok{}  {}  kv {} ({}, {} tok)", r.tokens.size(), speed, prompt,
	                               human_bytes(double(r.kv.total())), one_line(s.policy_text()), s.n_tokens());
	if (const KvFetch* f = s.seq().fetch(); f && f->stats().steps) {
		const FetchStats& t = f->stats();
		const double n = double(t.steps);
		line +=
		    fmt::format("  fetch {:.1f} % of attention in f16, {} a step, {:.2f} ms hidden and {:.2f} ms not",
		                t.share / n * 100, human_bytes(double(t.bytes) / n), t.hidden_s / n * 1e3, t.open_s / n * 1e3);
	}
	if (a.draft.given()) line += "  " + draft_text(r.draft.drafted, r.draft.accepted);
	if (a.temperature > kGreedyTemperature) line += fmt::format("  seed {}", seed);
	return line + fmt::format("  end: {}  device {}", lost ? "output failed" : end_text(s, r.reason),
	                          one_line(s.engine().backend().info().name));
}

Json json_answer(const RunArgs& a, const Session& s, const GenerateResult& r, const std::string& text, uint64_t seed,
                 double load_s) {
	const Engine& e = s.engine();
	Json j;
	j["text"] = text;
	j["tokens"] = r.tokens;
	j["stop_reason"] = stop_reason_name(r.reason);
	j["prompt_tokens"] = r.prompt_tokens;
	j["prompt_read"] = r.prompt_read;
	j["seed"] = seed;
	j["timings"] = {{"load_s", load_s},
	                {"prefill_s", r.prefill_s},
	                {"prefill_tok_s", per_second(tokens_worked(r), r.prefill_s)},
	                {"decode_s", r.decode_s},
	                {"decode_steps", r.decode_steps},
	                {"decode_tok_s", per_second(r.decode_steps, r.decode_s)}};
	if (a.draft.given()) j["draft"] = {{"draft_n", r.draft.drafted}, {"draft_n_accepted", r.draft.accepted}};
	j["kv"] = {{"policy", s.policy_text()}, {"tokens", s.n_tokens()}, {"bytes", r.kv.total()}};
	if (const KvFetch* f = s.seq().fetch())
		j["fetch"] = {{"steps", f->stats().steps},
		              {"attention_in_f16", f->stats().steps ? f->stats().share / double(f->stats().steps) : 0},
		              {"bytes", f->stats().bytes},
		              {"host_bytes", f->host().bytes()},
		              {"file_bytes", f->host().file_bytes()},
		              {"hidden_s", f->stats().hidden_s},
		              {"open_s", f->stats().open_s}};
	j["model"] = {{"file", a.engine.model},
	              {"architecture", e.config().arch},
	              {"name", e.config().name},
	              {"ctx", s.ctx()},
	              {"weight_bytes", e.weight_bytes()}};
	j["device"] = device_json(s.engine().backend().info());
	return j;
}

Json read_schema(const std::string& text) {
	Json schema;
	std::string why;
	if (!read_json(text, {}, schema, why)) fail(Code::Format, "--json-schema {}", why);
	return schema;
}

void check_form(const AnswerRules& form) {
	if (!form.gbnf.empty()) (void)grammar::Automaton(grammar::parse_gbnf(form.gbnf));
	if (form.schema.is_null()) return;
	grammar::Rules rules;
	const grammar::RuleId root = rules.add_rule("root");
	rules.set_body(root, grammar::add_schema(rules, form.schema));
	(void)grammar::Automaton(rules);
}

// The prompt may be a message that a template wraps, in front of which nothing can be dropped.
void check_prompt_options(const RunArgs& a) {
	if (a.chat && a.truncate)
		fail(Code::Invalid,
		     "--truncate drops the beginning of a raw prompt, which --chat's template would then lack; leave one out, "
		     "or raise --ctx-size");
	if (a.keep && !a.truncate) warn_no_effect("--keep", "it says what --truncate keeps, which is not given");
}

void run(RunArgs a) {
	check_prompt_options(a);
	if (!a.no_escape) {
		a.prompt = without_escapes(a.prompt);
		for (std::string& s : a.stops) s = without_escapes(s);
		for (std::string& s : a.dry_breakers) s = without_escapes(s);
	}
	const uint64_t seed = a.seed >= 0 ? uint64_t(a.seed) : std::random_device()();
	GenerateOptions opt;
	opt.n = a.predict < 0 ? UINT32_MAX : uint32_t(a.predict);
	std::vector<const char*> breakers;
	opt.sampling = api::sampler_options(a.options(seed, breakers));
	for (const kvrun_logit_bias& b : a.logit_bias) opt.sampling.bias.emplace_back(b.token, b.bias);
	opt.stops = a.stops;
	opt.ignore_end = a.ignore_eos;
	opt.special = a.special;
	opt.cancel = &Interrupt::requested();
	check_sampler(opt.sampling);
	StopStream{a.stops}; // refuses bad options before a model is loaded
	const KvPolicy policy = cache_policy(a.engine);
	AnswerRules form;
	form.gbnf = a.form.gbnf();
	if (const std::string schema = a.form.schema(); !schema.empty()) form.schema = read_schema(schema);
	check_form(form); // before a model is loaded
	const std::string prompt = read_prompt(a);
	Media media = read_media(a.media);
	std::optional<ChatTemplate> chat;
	if (a.chat) chat = chosen_template(a);

	const auto start = std::chrono::steady_clock::now();
	const std::unique_ptr<DraftModel> small = open_draft_model(a.engine, a.draft);
	const std::unique_ptr<Engine> engine = open_engine(a.engine, a.draft.rows(1), a.draft);
	opt.draft_max = a.draft.draft_max();
	if (small) opt.drafter = [&small] { return small->drafter(); };
	if (!a.chat && !engine->tokenizer().chat_template().empty())
		say_stats(
		    "this model has a chat template, and 'run' continues raw text: --chat asks it, 'kvrun chat' talks with it");
	for (const kvrun_logit_bias& b : a.logit_bias)
		if (b.token >= engine->config().vocab)
			fail(Code::Invalid, "--logit-bias {}: the vocabulary has {} tokens", b.token, engine->config().vocab);
	Session session(*engine, session_options(a.engine, policy, seed));
	const double load_s = seconds_since(start);
	log_session(session);
	const std::vector<uint32_t> ids =
	    prompt_tokens(a, session, chat, prompt, add_media(*engine, std::move(media)), form);
	log_at(1, "# prompt: {} tokens of {} characters{}", ids.size(), prompt.size(),
	       a.media.empty() ? "" : fmt::format(", {} images, {} sounds", a.media.images.size(), a.media.sounds.size()));
	if (a.form.given()) opt.grammar = answer_grammar(form, engine->tokenizer(), engine->token_trie());

	Interrupt interrupt;
	Progress progress;
	std::string text;
	std::exception_ptr lost; // why writing to stdout failed
	const bool filtered = stdout_is_terminal() && !a.raw;
	GenerateHooks hooks;
	hooks.prefill = [&](const Prefill& p) {
		progress.show("reading", p.progress(), p.seconds_left());
		log_at(2, "# read {:.1f} % of the prompt's work", p.progress() * 100);
		return true;
	};
	auto last = std::chrono::steady_clock::now();
	uint32_t n = 0;
	if (logs_at(2))
		hooks.token = [&](uint32_t token) {
			log_at(2, "# token {}: {}, {:.2f} ms", ++n, token, seconds_since(last) * 1e3);
			last = std::chrono::steady_clock::now();
		};
	hooks.text = [&](std::string_view piece) {
		progress.clear();
		text += piece;
		if (a.json || lost) return !lost;
		try {
			write_stdout(filtered ? visible(piece, /*lines=*/true) : std::string(piece));
		} catch (...) {
			lost = std::current_exception(); // rethrown after the statistics are printed
		}
		return !lost;
	};
	// on a terminal that shows both streams, statistics begin on a new line
	const auto end_line = [&] {
		progress.clear();
		const bool open = !a.json && !text.empty() && text.back() != '\n';
		if (open && stdout_is_terminal() && stderr_is_terminal()) std::fputs("\n", stderr);
	};
	GenerateResult r;
	try {
		r = generate(session, ids, opt, hooks);
	} catch (...) {
		end_line();
		throw;
	}
	end_line();
	if (a.json)
		print_json(json_answer(a, session, r, text, seed, load_s));
	else
		say_stats(stats_line(a, session, r, seed, lost != nullptr));
	if (lost) std::rethrow_exception(lost);
	if (r.reason == StopReason::Cancelled) throw Exit{kInterrupted};
}

} // namespace

void add_run(Command& root) {
	auto a = std::make_shared<RunArgs>();
	Command& c = add_command(root, "run", "Continues a prompt with a model.");
	c.examples = {
	    {"kvrun run model.gguf -p \"Once upon a time\" -n 64", "continue a text by 64 tokens"},
	    {"kvrun run model.gguf -f report.txt --temp 0 --kv kivi2", "greedy, with a cache of 2 bits per value"},
	    {"kvrun run model.gguf --mmproj mmproj.gguf --image photo.jpg --chat -p \"What is this?\"",
	     "ask about an image"},
	    {"kvrun run model.gguf --mmproj mmproj.gguf --audio talk.mp3 --chat -p \"Write down what is said.\"",
	     "ask about a sound"},
	    {"kvrun run model.gguf -f code.py --draft lookup", "several tokens in a step where the text repeats itself"},
	    {"kvrun run model.gguf -p \"A person: \" --json-schema person.json", "JSON that is valid under a schema"},
	    {"echo \"The capital of France is\" | kvrun run model.gguf -n 8 --json", "prompt from a pipe, result as JSON"}};
	add_engine_options(c, a->engine);
	const char *prompt = "Prompt", *answer = "Answer";
	Option* p =
	    add_text(c, "-p,--prompt", a->prompt, "TEXT", "prompt text, with escapes; no chat template without --chat");
	Option* f =
	    add_text(c, "-f,--file", a->file, kFile,
	             "read the prompt from this file, without one newline at its end; - or no option: from standard input");
	p->group(prompt), f->group(prompt);
	add_flag(c, "-e,--escape", a->escape,
	         "read \\n, \\r, \\t, \\\\, \\', \\\" and \\xNN in -p, --stop and --dry-sequence-breaker, as llama.cpp "
	         "does: the "
	         "default; -f and standard input are taken as they are")
	    ->group(prompt);
	add_flag(c, "--no-escape", a->no_escape, "take backslashes as they are")->group(prompt);
	add_flag(c, "--chat,-st,--single-turn", a->chat,
	         "the prompt is a message: give it to the model by its chat template")
	    ->group(prompt);
	const auto system = add_system(c, a->system, "with --chat: instructions for the model", prompt);
	const Option* of_chat[] = {
	    system[0], system[1],
	    add_text(c, "--chat-template,--chat-template-file", a->chat_template, "NAME|FILE",
	             "with --chat: a template by name, or a file in Jinja [the model's own]")
	        ->group(prompt),
	    add_template_variables(c, a->template_variables, "with --chat: ", prompt),
	    add_flag(c, "--no-think", a->no_think, "with --chat: answer without reasoning, where the template knows how")
	        ->group(prompt)};
	// not needs(): the settings file may say chat = true, and what it says of a conversation is for kvrun chat, too
	c.before_run.push_back([a, of_chat = std::to_array(of_chat)] {
		for (const Option* o : of_chat)
			if (o->typed() && !a->chat) fail(Code::Invalid, "{} needs --chat: run continues raw text", o->shown());
	});
	add_mmproj(c, a->engine.vision);
	add_media(c, a->media, "the prompt", prompt);
	c.before_run.push_back([a] {
		if (!a->engine.vision.mmproj.empty()) return;
		if (!a->media.images.empty()) fail(Code::Invalid, "--image needs --mmproj with the model's vision encoder");
		if (!a->media.sounds.empty()) fail(Code::Invalid, "--audio needs --mmproj with the model's audio encoder");
	});
	add_flag(c, "--no-bos", a->no_bos, "do not prepend the model's begin-of-text token")->group(prompt);
	add_flag(c, "--special,-sp", a->special, "parse control tokens in the prompt text, and print those of the answer")
	    ->group(prompt);
	add_flag(c, "--truncate", a->truncate, "drop the oldest tokens of a prompt that is longer than --ctx-size")
	    ->group(prompt);
	add_tokens(c, "--keep", a->keep, 0, 1 << 24, "with --truncate: first tokens of the prompt that stay [0]")
	    ->group(prompt);
	add_tokens(c, "-n,--predict,--n-predict", a->predict, -2, INT32_MAX,
	           "most tokens to generate; -1 or -2: until the model ends or the context is full [-1]")
	    ->group(answer);
	add_texts(c, "--stop,-r,--reverse-prompt", a->stops, "TEXT",
	          "end the answer before this text; may be given several times")
	    ->group(answer);
	add_grammar_options(c, a->form, answer);
	add_draft_options(c, a->draft, answer);
	add_flag(c, "--ignore-eos", a->ignore_eos, "continue after an end-of-text token")->group(answer);
	add_flag(c, "--raw", a->raw, "print control characters on a terminal as they are, not as \\xNN")->group(answer);
	add_flag(c, "--json", a->json, "print one JSON object at the end instead of text and statistics")->group(answer);
	add_says(c);
	add_sampling(c, *a, "random seed; -1 or 4294967295: a random one, printed at the end [-1]");
	add_llama_options(c);
	c.sections = {
	    {"Ctrl-C",
	     "Stops the prompt or the answer. The text so far and the statistics are printed, and the exit code is "
	     "130. A second Ctrl-C ends the program at once."},
	    json_section(
	        {{"text, tokens", "the answer, as text and as token IDs"},
	         {"stop_reason", "length, context (full), end (of text), stop (a stop string) or cancelled"},
	         {"prompt_tokens, prompt_read", "tokens of the prompt, and those of them that are in the cache"},
	         {"seed", "of the sampler"},
	         {"timings", "load_s, prefill_s, prefill_tok_s, decode_s, decode_steps, decode_tok_s"},
	         {"draft", "with --draft: draft_n, draft_n_accepted: tokens guessed, and those of them that were right"},
	         {"kv", "policy, tokens, bytes: the cache at the end"},
	         {"fetch",
	          "of policies that fetch: steps, attention_in_f16 (share of it on average), bytes moved, "
	          "host_bytes and of them file_bytes, hidden_s, open_s (the host's part, beside the device and not)"},
	         {"model", "file, architecture, name, ctx, weight_bytes"},
	         {"device", "name, driver, type, cpu (runs on the host's processor)"}})};
	c.run = [a, p, f] {
		if (p->count > 0 && f->count > 0) fail(Code::Invalid, "--prompt and --file are both given; give one of them");
		a->has_prompt = p->count > 0;
		run(*a);
	};
}

} // namespace kvrun
