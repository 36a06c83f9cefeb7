// One chat: a conversation, the session that holds its tokens, and the files it is kept in.
#include "tools/chat/chat.h"
#include "tools/audio/audio_file.h"
#include "tools/chat/input.h"
#include "tools/image/image_file.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include "tools/user_files.h"
#include <algorithm>
#include <fmt/ranges.h>
#include <random>
#include <set>

namespace kvrun {
namespace {

constexpr size_t kLongestText = size_t(64) << 20; // bytes of a file that is attached, and of a chat's

int show_reading(double done, double seconds_left, void* payload) {
	static_cast<Progress*>(payload)->show("reading", done, seconds_left);
	return 0;
}

void require_chat(const std::string& name) {
	if (chat_exists(name)) return;
	const std::vector<std::string> names = saved_chats();
	fail_status(KVRUN_ENOTFOUND, "there is no chat '{}'{}{}", name, names.empty() ? "" : "; there are ",
	            fmt::join(names, ", "));
}

} // namespace

void say_lines(const std::string& text) {
	for (size_t at = 0; at <= text.size();) {
		const size_t end = std::min(text.find('\n', at), text.size());
		say(text.substr(at, end - at));
		at = end + 1;
	}
}

Chat::Chat(const ChatArgs& a, const ChatModel& model, bool terminal)
    : args_(a), model_(model), terminal_(terminal), policy_given_(!a.kv.empty()),
      seed_(a.seed >= 0 ? uint64_t(a.seed) : std::random_device()()),
      canceller_(created<CancellerHandle>(kvrun_canceller_new)) {
	if (!a.system.empty()) set_system(a.system);
	new_session();
}

void Chat::new_session() {
	model_.session(args_.kv, args_.ctx, seed_); // a bad policy changes nothing
	session_.reset();                           // frees its memory for the new session
	session_ = model_.session(args_.kv, args_.ctx, seed_);
}

void Chat::undo() {
	std::vector<ChatMessage>& m = conversation_.messages;
	if (m.empty()) fail_status(KVRUN_EINVALID, "there is nothing to take back");
	if (!conversation_.open()) m.pop_back();
	say(fmt::format("took back: {}", well_formed(m.back().text.substr(0, 60))));
	m.pop_back();
	size_t& left_out = conversation_.left_out;
	while (left_out > 0 && (left_out >= m.size() || !m[left_out].user)) --left_out;
	keep();
}

void Chat::clear() {
	close();
	const std::string left = named_ ? files_->name() : "";
	files_.reset();
	named_ = last_tried_ = false;
	Conversation next;
	next.system = conversation_.system;
	conversation_ = std::move(next);
	attached_ = {};
	new_session();
	say(left.empty() ? "a new conversation"
	                 : fmt::format("a new conversation without a name (/save NAME); '{}' stays as it is", left));
}

void Chat::set_system(const std::string& text) {
	conversation_.system = well_formed(text);
	if (session_) keep();
}

void Chat::begin_with(const std::string& system) {
	if (conversation_.messages.empty()) return set_system(system);
	if (conversation_.system != well_formed(system))
		say(fmt::format(
		    "chat '{}' keeps its instructions, because it has messages: /system TEXT changes them, or begin "
		    "another chat with --chat NAME",
		    files_->name()));
}

void Chat::set_thinking(bool on) {
	if (!model_.features().thinking_switch) return say("think has no effect: the chat template does not know it");
	args_.think = on;
}

void Chat::set_seed(int64_t seed) {
	args_.seed = seed == UINT32_MAX ? -1 : seed; // llama.cpp's word for a random one
	seed_ = (args_.seed >= 0 ? uint64_t(seed) : std::random_device()()) - conversation_.answers;
}

void Chat::attach(const std::string& path) {
	const std::string text = read_text_file(path, kLongestText);
	check_text(text, path);
	if (well_formed(text) != text) fail_status(KVRUN_EINVALID, "{} is no UTF-8 text", path);
	attached_.text += text + "\n\n";
	say(fmt::format("{}: {} go in front of the next message", path, human_bytes(double(text.size()))));
}

void Chat::check_reads(MediaKind kind) const {
	const kvrun_engine_info i = engine_info(model_.engine());
	if (kind == MediaKind::Image ? i.reads_images != 0 : i.audio_rate != 0) return;
	fail_status(KVRUN_EUNSUPPORTED,
	            "this model reads no {}: its {} encoder was not given; start again with --mmproj FILE",
	            words_of(kind).all, kind == MediaKind::Image ? "vision" : "audio");
}

// The id of what a file holds; size: in words.
std::string Chat::add(MediaKind kind, const std::string& path, std::string* size) const {
	if (kind == MediaKind::Image) {
		const Pixels pixels = read_image(path);
		if (size) *size = fmt::format("{} x {} pixels", pixels.width, pixels.height);
		return add_image(model_.engine(), pixels);
	}
	const uint32_t rate = engine_info(model_.engine()).audio_rate;
	const std::vector<float> samples = read_audio_file(path, rate);
	if (size) *size = fmt::format("{:.1f} seconds of sound", double(samples.size()) / rate);
	return add_audio(model_.engine(), samples);
}

void Chat::attach(MediaKind kind, const std::string& path) {
	check_reads(kind);
	std::string size;
	const std::string id = add(kind, path, &size);
	attached_.media.push_back({kind, absolute_path(path), id});
	say(fmt::format("{}: {} go in front of the next message", path, size));
}

// Images and sounds of a chat that was loaded are read from their files again. The path of one that cannot be read
// stays in the chat, so that it is there again when its file is.
void Chat::read_media(Conversation& c) const {
	std::set<std::string> missing; // each is said once
	for (ChatMessage& m : c.messages)
		for (ChatMedia& one : m.media) {
			check_reads(one.kind);
			try {
				one.id = add(one.kind, one.path);
			} catch (const StatusError& e) {
				if (!missing.insert(one.path).second) continue;
				std::string why = e.what();
				if (const std::string named = one.path + ": "; why.starts_with(named)) why.erase(0, named.size());
				say(fmt::format("{}: the chat goes on without this {}: {}", one.path, words_of(one.kind).name, why));
			}
		}
}

void Chat::change_policy(const std::string& kv, int64_t ctx) {
	model_.session(kv, ctx ? ctx : args_.ctx, seed_); // a bad policy changes nothing
	args_.kv = kv;
	if (ctx) args_.ctx = ctx;
	new_session();
	read_again();
	const kvrun_session_info i = session_info(session_.get());
	say(fmt::format("policy {}: {} of {} tokens, {}", i.kv, i.n_tokens, i.ctx, human_bytes(double(i.total_bytes))));
	keep();
}

// Reads the conversation into an empty session; what does not fit, was cancelled or failed is read with the next
// question.
void Chat::read_again() {
	if (conversation_.left_out >= conversation_.messages.size()) return;
	const AnswerInterrupt interrupt(canceller_.get());
	const std::vector<uint32_t> tokens = prompt_tokens(/*answer=*/false);
	if (too_long(tokens.size())) return say(full_line(tokens.size()));
	const uint32_t kept = keep_common(tokens);
	Progress bar;
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.on_prefill = show_reading;
	o.payload = &bar;
	o.canceller = canceller_.get();
	const kvrun_status s = kvrun_prefill(session_.get(), tokens.data() + kept, tokens.size() - kept, &o, nullptr);
	const std::string error = kvrun_last_error();
	bar.clear();
	if (s == KVRUN_ECANCELLED) return say("stopped; the rest is read with the next message");
	if (s == KVRUN_ENOMEM || s == KVRUN_ECONTEXT) return say(full_line(tokens.size()));
	// the chat can be opened all the same, and /undo takes back what the device cannot read
	if (s != KVRUN_OK) say(error + "; the rest is read with the next message");
}

// ---- files

std::string Chat::json() const { return chat_to_json({conversation_, session_info(session_.get()).kv}); }

// Writes the conversation to its file. An unnamed chat on a terminal is saved as kLastChat.
void Chat::keep() {
	const bool wanted = terminal_ && !args_.no_history && !conversation_.messages.empty();
	if (named_) return write_private_file(files_->conversation(), json());
	if (!wanted || (last_tried_ && !files_)) return;
	last_tried_ = true;
	try {
		if (!files_) files_.emplace(kLastChat);
		write_private_file(files_->conversation(), json());
	} catch (const StatusError& e) { // does not end the chat
		files_.reset();
		say(fmt::format("{}; this chat is kept only by /save NAME", e.what()));
	}
}

// A session that fetches is part copy in host memory, which files do not hold: its chat keeps the conversation alone.
bool Chat::keeps_cache() const { return !fetch_info(session_.get()).fetch; }

void Chat::save_cache() {
	if (!keeps_cache()) return files_->drop_cache();
	const std::string note = json();
	check_call(kvrun_session_save(session_.get(), files_->cache().c_str(), note.data(), note.size()));
}

void Chat::close() {
	if (!named_) return;
	keep();
	save_cache();
}

void Chat::take_files(ChatFiles files) {
	files_ = std::move(files);
	named_ = true;
	keep();
}

void Chat::save(const std::string& name) {
	if (name.empty() && !named_) fail_status(KVRUN_EINVALID, "this chat has no name yet; give one: /save NAME");
	if (!name.empty() && !(named_ && files_->name() == name)) {
		if (chat_exists(name)) fail_status(KVRUN_EINVALID, "chat '{}' exists; /load it, or choose another name", name);
		take_files(ChatFiles(name));
	}
	close();
	const kvrun_session_info i = session_info(session_.get());
	const std::string cache =
	    keeps_cache() ? fmt::format("{} tokens in the cache", i.n_tokens)
	                  : fmt::format("without the cache, as policy {} fetches; /load reads the messages again", i.kv);
	say(fmt::format("saved as '{}': {} messages, {}", files_->name(), conversation_.messages.size(), cache));
}

void Chat::fork(const std::string& name) {
	if (chat_exists(name)) fail_status(KVRUN_EINVALID, "chat '{}' exists; choose another name", name);
	ChatFiles files(name);
	close();
	take_files(std::move(files));
	save_cache();
	say(fmt::format("goes on as '{}'", name));
}

void Chat::remove(const std::string& name) {
	if (files_ && files_->name() == name)
		fail_status(KVRUN_EINVALID, "chat '{}' is the one that is open; /clear leaves it", name);
	require_chat(name);
	ChatFiles(name).remove();
	say(fmt::format("chat '{}' is deleted", name));
}

void Chat::load(const std::string& name) {
	if (name.empty()) {
		const std::vector<std::string> names = saved_chats();
		return say(names.empty() ? "no saved chats" : fmt::format("saved chats: {}", fmt::join(names, ", ")));
	}
	if (files_ && files_->name() == name) return say(fmt::format("chat '{}' is the one that is open", name));
	require_chat(name);
	ChatFiles files(name);
	SavedChat saved = chat_from_json(read_private_file(files.conversation(), kLongestText), files.conversation());
	read_media(saved.conversation);
	const std::string kv = policy_given_ ? args_.kv : saved.kv;
	try {
		model_.session(kv, args_.ctx, seed_); // a bad policy changes nothing
	} catch (const StatusError& e) {
		if (policy_given_ || e.status != KVRUN_EINVALID) throw;
		fail_status(KVRUN_EFORMAT, "{}: damaged chat: kv: {}; --kv takes another policy", files.conversation(),
		            e.what());
	}
	close();
	files_ = std::move(files);
	named_ = true;
	conversation_ = std::move(saved.conversation);
	attached_ = {};
	args_.kv = kv;
	restore(name);
	const kvrun_session_info i = session_info(session_.get());
	say(fmt::format("chat '{}': {} messages, {} of {} tokens, policy {}", name, conversation_.messages.size(),
	                i.n_tokens, i.ctx, i.kv));
	if (conversation_.open()) say("the last question has no answer; /retry asks it again");
}

// Restores the session of a saved chat from its cache, or by reading the conversation again.
void Chat::restore(const std::string& name) {
	new_session();
	const kvrun_session_info wanted = session_info(session_.get());
	const std::string policy = wanted.kv;
	SessionHandle stored;
	std::string why = foreign_file(files_->cache());
	const kvrun_status s =
	    why.empty() ? create(stored, kvrun_session_restore, model_.engine(), files_->cache().c_str()) : KVRUN_EIO;
	if (s != KVRUN_OK && why.empty()) why = kvrun_last_error();
	if (s == KVRUN_OK) {
		const kvrun_session_info i = session_info(stored.get());
		if (policy != i.kv) why = fmt::format("it was written under {}, this chat runs under {}", i.kv, policy);
		if (args_.ctx && args_.ctx != i.ctx) why = fmt::format("it has a context of {}, not {}", i.ctx, args_.ctx);
		if (why.empty()) {
			session_ = std::move(stored);
			const std::vector<uint32_t> held = session_tokens(session_.get());
			if (held.empty() || conversation_.left_out >= conversation_.messages.size()) return;
			const std::vector<uint32_t> prompt = prompt_tokens(/*answer=*/true);
			const auto common = std::ranges::mismatch(held, prompt).in1 - held.begin();
			if (size_t(common) * 2 > held.size()) return;
			why = "it holds another conversation";
			new_session();
		}
	}
	stored.reset();
	if (s != KVRUN_ENOTFOUND)
		say(fmt::format("chat '{}': its cache is not used: {}; reading the conversation", name, why));
	read_again();
}

std::string Chat::stats() const {
	const kvrun_session_info i = session_info(session_.get());
	const auto size = [](uint64_t bytes) { return human_bytes(double(bytes)); };
	std::string out = fmt::format("context: {} of {} tokens ({:.0f} %), {} messages", i.n_tokens, i.ctx,
	                              100. * i.n_tokens / std::max(i.ctx, 1u), conversation_.messages.size());
	if (conversation_.left_out) out += fmt::format(", {} left out", conversation_.left_out);
	out += fmt::format("\nlast answer: {} tok read {:.1f} tok/s, {} tok {:.1f} tok/s", last_.prompt_cached,
	                   per_second(last_.prompt_cached, last_.prefill_seconds), last_.answer_tokens,
	                   per_second(last_.answer_tokens, last_.decode_seconds));
	if (args_.draft.given()) out += ", " + draft_text(last_.drafted, last_.drafts_accepted);
	out += fmt::format("\nall answers: {} tok {:.1f} tok/s", answer_tokens_,
	                   per_second(double(answer_tokens_), decode_seconds_));
	out +=
	    fmt::format("\ncache: {} ({}): f16 {}, codes {}, scales and zero points {}, slots and tables {}; all as f16 {}",
	                size(i.total_bytes), i.kv, size(i.f16_bytes), size(i.code_bytes), size(i.param_bytes),
	                size(i.overhead_bytes), size(i.f16_equivalent));
	if (const kvrun_fetch_info f = fetch_info(session_.get()); f.steps) {
		const double n = double(f.steps);
		out += fmt::format("\nfetched: {:.1f} % of attention in f16, {} a step, {:.2f} ms of it hidden and {:.2f} ms "
		                   "not; {} on the host, {} of it in a file",
		                   f.f16_share * 100, human_bytes(double(f.fetched_bytes) / n), f.hidden_seconds / n * 1e3,
		                   f.open_seconds / n * 1e3, size(f.host_bytes), size(f.file_bytes));
	}
	return out;
}

} // namespace kvrun
