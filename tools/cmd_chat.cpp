// kvrun chat: a conversation with a model, on a terminal or through pipes.
#include "engine/core/system/machine.h"
#include "engine/core/system/terminal.h"
#include "tools/args_cache.h"
#include "tools/args_llama.h"
#include "tools/args_says.h"
#include "tools/chat/chat.h"
#include "tools/chat/external_editor.h"
#include "tools/chat/input.h"
#include "tools/chat/store.h"
#include "tools/commands.h"
#include "tools/config_file.h"
#include "tools/terminal.h"
#include "tools/user_files.h"
#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <utility>

namespace kvrun {
namespace {

constexpr size_t kLongestFirst = size_t(64) << 20; // bytes of a first message

struct ChatCommand {
	const char *name, *operands, *help;
	// rest: the text after the name. Returns false if the requested answer was cancelled.
	std::function<bool(Chat&, const std::string& rest)> run;
};

// "name rest" -> name; `text` keeps the rest.
std::string take_word(std::string& text) {
	const size_t end = std::min(text.find_first_of(" \t\n"), text.size());
	std::string word = text.substr(0, end);
	text.erase(0, std::min(text.find_first_not_of(" \t\n", end), text.size()));
	return word;
}

double number_of(const std::string& name, const std::string& s, double lowest, double highest, bool whole) {
	double v = 0;
	const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
	// written so that NaN fails
	const bool good = ec == std::errc() && end == s.data() + s.size() && v >= lowest && v <= highest;
	if (!good || (whole && v != double(int64_t(v))))
		fail_status(KVRUN_EINVALID, "{} is '{}', expected {} from {} to {}", name, s, whole ? "an integer" : "a number",
		            lowest, highest);
	return v;
}

bool on_or_off(const std::string& name, const std::string& s) {
	if (s != "on" && s != "off") fail_status(KVRUN_EINVALID, "{} is '{}', expected on or off", name, s);
	return s == "on";
}

std::string setting_name(const SamplingOption& o) { // of the flags "--temp,--temperature": temp
	const std::string_view flags = o.flags;
	return std::string(flags.substr(2, flags.find(',') - 2));
}
std::string setting_names() {
	std::string names;
	for (const SamplingOption& o : sampling_options()) names += setting_name(o) + ", ";
	return names;
}

// Options that are rarely used are shown if they are set.
std::string shown_settings(const ChatArgs& a) {
	constexpr int kUsual = 4;
	std::string sampling;
	for (const SamplingOption& o : sampling_options()) {
		const auto value = [&](const Sampling& of) {
			return std::visit([&](auto at) { return fmt::format("{}", of.*at); }, o.at);
		};
		if (&o - sampling_options().data() < kUsual || value(a) != value({}))
			sampling += fmt::format("{} {}, ", setting_name(o), value(a));
	}
	return fmt::format("{}max-tokens {}, seed {}, think {}, on-full {}", sampling, a.predict, a.seed,
	                   !a.think   ? "as the template has it"
	                   : *a.think ? "on"
	                              : "off",
	                   a.on_full);
}

void change_setting(Chat& chat, const std::string& name, const std::string& value) {
	ChatArgs& a = chat.settings();
	const auto whole = [&](double lowest, double highest) {
		return int64_t(number_of(name, value, lowest, highest, true));
	};
	for (const SamplingOption& o : sampling_options()) {
		if (name != setting_name(o)) continue;
		const double lowest = o.also_minus_one ? -1 : o.lowest;
		if (const auto* at = std::get_if<double Sampling::*>(&o.at))
			a.** at = number_of(name, value, lowest, o.highest, false);
		else
			a.*std::get<int64_t Sampling::*>(o.at) = whole(lowest, o.highest);
		return;
	}
	if (name == "max-tokens")
		a.predict = whole(-2, INT32_MAX);
	else if (name == "seed")
		chat.set_seed(whole(-1, UINT32_MAX)); // a random one has 32 bits
	else if (name == "think")
		chat.set_thinking(on_or_off(name, value));
	else if (name == "on-full" && (value == "stop" || value == "drop-oldest"))
		a.on_full = value;
	else if (name == "on-full")
		fail_status(KVRUN_EINVALID, "on-full is '{}', expected stop or drop-oldest", value);
	else
		fail_status(KVRUN_EINVALID, "'{}' cannot be set; names are {}max-tokens, seed, think, on-full", name,
		            setting_names());
}

void set(Chat& chat, std::string rest) {
	const std::string name = take_word(rest);
	if (!name.empty() && rest.empty()) fail_status(KVRUN_EINVALID, "/set {0} needs a value: /set {0} VALUE", name);
	if (!name.empty()) change_setting(chat, name, rest);
	say(shown_settings(chat.settings()));
}

void change_policy(Chat& chat, std::string rest) {
	const std::string kv = take_word(rest);
	if (kv.empty()) fail_status(KVRUN_EINVALID, "/kv needs a policy; kvrun help plan lists them");
	const std::optional<int64_t> ctx = rest.empty() ? 0 : token_count(rest, 1, longest_context());
	if (!ctx)
		fail_status(KVRUN_EINVALID, "context is '{}', expected an integer from 1 to {}, like 4096 or 32k", rest,
		            longest_context());
	chat.change_policy(kv, *ctx);
}

// The shell does not see what is typed here.
std::string path_of_home(const std::string& path) {
	return path.starts_with("~/") ? sys::home_folder() + path.substr(1) : path;
}

bool edit_message(Chat& chat, const std::string& text) {
	const std::string message = edit_text(text);
	if (message.find_first_not_of(" \t\r\n") != std::string::npos) return chat.ask(message);
	say("the message is empty; nothing was sent");
	return true;
}

void say_commands();

const std::vector<ChatCommand>& commands() {
	using S = const std::string&;
	const auto no_answer = [](auto&& f) {
		return [f](Chat& chat, S rest) {
			const Loud loud; // what a user asked for is a result, also with -q
			f(chat, rest);
			return true;
		};
	};
	static const std::vector<ChatCommand> all = {
	    {"help", "", "list these commands", no_answer([](Chat&, S) { say_commands(); })},
	    {"set", "[NAME VALUE]", "show or change temp and other sampling options, max-tokens, seed, think, on-full",
	     no_answer(set)},
	    {"system", "[TEXT]", "instruct the model; no TEXT: without instructions", no_answer([](Chat& c, S rest) {
		     c.set_system(rest);
		     say(rest.empty() ? "no instructions" : "the next answer follows these instructions");
	     })},
	    {"file", "PATH", "put a text file in front of the next message",
	     no_answer([](Chat& c, S rest) { c.attach(path_of_home(rest)); })},
	    {"image", "PATH", "put an image in front of the next message, for models with --mmproj",
	     no_answer([](Chat& c, S rest) { c.attach(MediaKind::Image, path_of_home(rest)); })},
	    {"audio", "PATH", "put a sound in front of the next message, for models with --mmproj",
	     no_answer([](Chat& c, S rest) { c.attach(MediaKind::Audio, path_of_home(rest)); })},
	    {"edit", "[TEXT]", "write the message in the editor of $VISUAL or $EDITOR", edit_message},
	    {"save", "[NAME]", "keep this chat under a name, from now on",
	     no_answer([](Chat& c, S rest) { c.save(rest); })},
	    {"load", "[NAME]", "go on with a saved chat; no NAME: list them",
	     no_answer([](Chat& c, S rest) { c.load(rest); })},
	    {"fork", "NAME", "go on under another name, and keep the chat so far",
	     no_answer([](Chat& c, S rest) { c.fork(rest); })},
	    {"delete", "NAME", "delete a saved chat and its cache", no_answer([](Chat& c, S rest) { c.remove(rest); })},
	    {"undo", "", "take back the last message and its answer", no_answer([](Chat& c, S) { c.undo(); })},
	    {"retry", "", "answer the last message again", [](Chat& c, S) { return c.retry(); }},
	    {"clear", "", "begin a new conversation", no_answer([](Chat& c, S) { c.clear(); })},
	    {"stats", "", "show tokens, speeds, context and cache", no_answer([](Chat& c, S) { say_lines(c.stats()); })},
	    {"kv", "POLICY [N]", "change the cache policy, and the context to N tokens; the conversation is read again",
	     no_answer(change_policy)},
	    {"exit", "", "leave; so do /quit, /bye and Ctrl-D", nullptr},
	};
	return all;
}

std::string term(const ChatCommand& c) { return fmt::format("/{}{}{}", c.name, *c.operands ? " " : "", c.operands); }

void say_commands() {
	for (const ChatCommand& c : commands()) say(fmt::format("{:<20} {}", term(c), c.help));
	say("\"\"\" begins and ends a message of several lines; so does Alt-Enter between them. // is a / at the front.");
}

// The command that `entry` names; null if it is a message, whose doubled slash is then reduced to one.
const ChatCommand* find_command(std::string& entry) {
	if (!entry.starts_with('/')) return nullptr;
	entry.erase(0, 1);
	if (entry.starts_with('/')) return nullptr;
	std::string name = take_word(entry);
	entry.erase(entry.find_last_not_of(" \t\n") + 1);
	if (name == "quit" || name == "bye") name = "exit";
	std::vector<std::string> names;
	for (const ChatCommand& c : commands()) {
		if (name == c.name) return &c;
		names.push_back(c.name);
	}
	const std::string similar = nearest(name, names);
	fail_status(KVRUN_EINVALID, "unknown command '/{}'{}; /help lists them, // begins a message with a slash", name,
	            similar.empty() ? "" : fmt::format(", did you mean '/{}'?", similar));
}

std::vector<std::string> policy_names() {
	std::vector<std::string> out = {"auto", "tuned:"};
	for (size_t i = 0; i < kvrun_policy_count(); ++i) {
		kvrun_policy_info p = KVRUN_POLICY_INFO_INIT;
		if (kvrun_policy_get(i, &p) == KVRUN_OK) out.push_back(p.name);
	}
	return out;
}

// Tab completes commands and what can follow them.
Completion complete(std::string_view typed) {
	if (!typed.starts_with('/') || typed.starts_with("//")) return {};
	const size_t end = typed.find(' ');
	std::vector<std::string> names;
	if (end == typed.npos) {
		for (const ChatCommand& c : commands()) names.push_back(fmt::format("/{}{}", c.name, *c.operands ? " " : ""));
		return {0, beginning_with(typed, std::move(names))};
	}
	const std::string_view command = typed.substr(1, end - 1);
	const size_t from = std::min(typed.find_first_not_of(' ', end), typed.size());
	const std::string_view word = typed.substr(from);
	if (command == "file" || command == "image") return {from, paths_beginning(std::string(word), sys::home_folder())};
	if (command == "load" || command == "delete") names = saved_chats();
	if (command == "kv") names = policy_names();
	if (command == "set") {
		names = {"max-tokens ", "seed ", "think ", "on-full "};
		for (const SamplingOption& o : sampling_options()) names.push_back(setting_name(o) + " ");
	}
	return {from, beginning_with(word, std::move(names))};
}

// rest: what follows the command's name.
void check_operands(const ChatCommand& c, const std::string& rest) {
	const std::string_view operands = c.operands;
	if (operands.empty() && !rest.empty())
		fail_status(KVRUN_EINVALID, "/{} takes nothing behind it, and '{}' follows", c.name, rest);
	const bool required = !operands.empty() && operands.find('[') == operands.npos;
	if (required && rest.empty()) fail_status(KVRUN_EINVALID, "/{0} needs a {1}: /{0} {1}", c.name, operands);
}

// Handles one message or command. Returns false to leave the chat. message: it is one, whatever it begins with.
bool take_entry(Chat& chat, std::string entry, bool terminal, bool message) {
	const ChatCommand* command = message ? nullptr : find_command(entry);
	if (command) check_operands(*command, entry);
	if (command && !command->run) return false;
	if (!command && entry.find_first_not_of(" \t\r\n") == std::string::npos) return true;
	const bool whole = command ? command->run(chat, entry) : chat.ask(std::move(entry));
	if (whole || terminal || asked_to_end()) return command || !chat.settings().single;
	chat.close();
	throw Exit{kInterrupted}; // without a terminal there is no user to continue
}

// first: a message that the command line gives; may be empty.
void converse(Chat& chat, LineInput& input, bool terminal, std::string first) {
	bool warned = false; // by the previous line
	const auto end_if_asked = [&] {
		if (!asked_to_end()) return;
		chat.close();
		sys::end_as_asked();
	};
	for (;;) {
		try {
			end_if_asked();
			if (!first.empty() && !take_entry(chat, std::exchange(first, ""), terminal, /*message=*/true)) break;
			end_if_asked();
			std::string entry;
			const LineInput::Got got = read_entry(input, entry);
			if (got == LineInput::Got::End || (got == LineInput::Got::Interrupt && warned)) break;
			warned = got == LineInput::Got::Interrupt;
			if (warned)
				say("Ctrl-C again, Ctrl-D or /exit leaves");
			else if (!take_entry(chat, entry, terminal, /*message=*/false))
				break;
		} catch (const StatusError& e) {
			if (!terminal || asked_to_end() || e.status == KVRUN_EINTERNAL) throw;
			say_error(e.what());
		}
	}
	chat.close();
	end_if_asked();
}

std::string history_file(const ChatArgs& a) {
	if (a.no_history) return {};
	try {
		const std::string folder = state_folder();
		return folder.empty() ? "" : folder + "/history";
	} catch (const StatusError& e) { // does not end the chat
		say(fmt::format("{}; what is typed is not kept", e.what()));
		return {};
	}
}

void run_chat(const ChatArgs& given) {
	ChatArgs a = given;
	const bool terminal = is_interactive();
	install_interrupt();
	const bool saved = !a.name.empty() && chat_exists(a.name); // a bad name or folder is found before the model is read
	check_template_file(a.chat_template);
	if (!a.file.empty()) check_text(a.prompt = read_text_file(a.file, kLongestFirst), a.file);
	if (!a.file.empty() && a.prompt.ends_with('\n')) a.prompt.pop_back();
	if (!a.no_escape) {
		if (a.file.empty()) a.prompt = without_escapes(a.prompt);
		for (std::string& s : a.stops) s = without_escapes(s);
		for (std::string& s : a.dry_breakers) s = without_escapes(s);
	}
	const ChatModel model(a);
	Chat chat(a, model, stdout_is_terminal());
	if (a.no_think) chat.set_thinking(false);
	if (saved) {
		chat.load(a.name);
		if (!a.system.empty()) chat.begin_with(a.system);
	} else if (!a.name.empty()) {
		chat.save(a.name);
	}
	for (const std::string& path : a.media.images) chat.attach(MediaKind::Image, path);
	for (const std::string& path : a.media.sounds) chat.attach(MediaKind::Audio, path);
	const auto input = edits_lines() ? editor_input(history_file(a), complete) : plain_input();
	if (terminal)
		say("/help lists the commands; Ctrl-C ends an answer, Ctrl-D leaves");
	else if (sys::is_terminal(0))
		say("type messages, a line each; Ctrl-D ends");
	converse(chat, *input, terminal, a.prompt);
}

void add_options(Command& c, ChatArgs& a) {
	const char* chat = "Conversation";
	add_model_options(c, a, "the longest conversation in tokens");
	add_check(c, a.check);
	add_cache_policy(c, a.kv, kPolicy,
	                 "policy of the KV cache; kvrun help plan lists them [that of the chat, or fp16]");
	add_kv_budget(c, a.kv_budget, "the KV cache");
	add_host_memory(c, a);
	add_choice(c, "--on-full", a.on_full, {"stop", "drop-oldest"},
	           "where the context is full: say so, or leave out the oldest messages [stop]")
	    ->group(kCacheGroup);
	add_text(c, "--chat-template,--chat-template-file", a.chat_template, "NAME|FILE",
	         "chat template: a name, like chatml, or a file in Jinja [the model's own]")
	    ->group(chat);
	add_template_variables(c, a.template_variables, "", chat);
	add_system(c, a.system,
	           "instructions for the model, in front of the conversation; of a saved chat where it has no messages",
	           chat);
	Option* text = add_text(c, "-p,--prompt", a.prompt, "TEXT", "the first message, with escapes (\\n)");
	Option* file =
	    add_text(c, "-f,--file", a.file, kFile, "the first message is this file, without one newline at its end");
	text->group(chat), file->group(chat);
	c.before_run.push_back([text, file] {
		if (text->count && file->count) fail_status(KVRUN_EINVALID, "--prompt and --file are both given; give one");
	});
	add_flag(c, "--no-escape", a.no_escape, "take backslashes of -p, --stop and --dry-sequence-breaker as they are")
	    ->group(chat);
	add_flag(c, "-st,--single-turn", a.single, "leave after one message and its answer")->group(chat);
	add_mmproj(c, a.vision);
	add_media(c, a.media, "the first message", chat);
	add_text(c, "--chat", a.name, "NAME", "go on with the saved chat of this name, or begin it")->group(chat);
	add_flag(c, "--no-think", a.no_think, "answer without reasoning, where the template knows how")->group(chat);
	add_flag(c, "--no-history", a.no_history, "keep neither the lines that are typed nor a chat without a name")
	    ->group(chat);
	add_tokens(c, "-n,--predict,--n-predict", a.predict, -2, INT32_MAX,
	           "most tokens of an answer; -1 or -2: until the model ends it or the context is full [-1]")
	    ->group(chat);
	add_texts(c, "--stop,-r,--reverse-prompt", a.stops, "TEXT",
	          "end answers before this text, with escapes (\\n); may be given several times")
	    ->group(chat);
	add_flag(c, "--ignore-eos", a.ignore_eos, "continue answers after an end-of-text token; give -n")->group(chat);
	add_says(c);
	add_grammar_options(c, a.form, chat);
	add_draft_options(c, a.draft, chat);
	add_sampling(c, a, "random seed of the first answer; -1 or 4294967295: a random one [-1]");
	add_llama_options(c);
}

} // namespace

void add_chat(Command& root) {
	auto a = std::make_shared<ChatArgs>();
	Command& c = add_command(root, "chat", "Talks with a model.");
	c.examples = {{"kvrun chat model.gguf", "a conversation on the terminal; /help lists its commands"},
	              {"kvrun chat model.gguf --chat work --kv kivi2",
	               "go on with the chat 'work', with a cache of 2 bits per value"},
	              {"kvrun chat model.gguf -p \"What is a quine?\"", "a conversation that begins with this message"},
	              {"kvrun chat model.gguf --temp 0 < questions.txt > answers.txt", "each line is a message"}};
	add_options(c, *a);
	Section list{"Commands", "Lines that begin with a slash:", {}};
	for (const ChatCommand& command : commands()) list.entries.push_back({term(command), command.help});
	c.sections = {
	    list,
	    {"Messages",
	     "A line is a message. \"\"\" begins and ends one of several lines; so does Alt-Enter between them, "
	     "a paste may have several, and /edit opens an editor. Without a terminal, lines come from standard input, "
	     "only answers go to standard output, and the first error ends the program; prompts for lines that are typed "
	     "all the same go to standard error."},
	    {"Ctrl-C",
	     "Ends the answer, which is kept as far as it came; twice ends the program. Ctrl-D leaves. SIGTERM ends the "
	     "program, and an answer is kept as far as it came; so is one whose output or device fails."},
	    {"Saved chats", "Files in $XDG_STATE_HOME/kvrun/chats, or ~/.local/state/kvrun/chats, which only their owner "
	                    "can read: NAME.json is the conversation, written with every message and answer, NAME.kv the "
	                    "packed cache. A terminal's chat without a name is kept as 'last', until the next one."}};
	c.run = [a] {
		try {
			run_chat(*a);
		} catch (const StatusError& e) {
			say_error(with_place(e.what()));
			throw Exit{exit_code_of(e.status)};
		}
	};
}

} // namespace kvrun
