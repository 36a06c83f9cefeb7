// Answers of a chat: prompts that continue what the cache holds, streaming, and a context that is full.
#include "tools/chat/chat.h"
#include "tools/chat/input.h"
#include "tools/terminal.h"
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fmt/ranges.h>
#include <span>

namespace kvrun {
namespace {

// An answer on its way to standard output.
class AnswerStream {
 public:
	AnswerStream(ReplyHandle reply, bool terminal) : reply_(std::move(reply)), terminal_(terminal) {
		const char* none = std::getenv("NO_COLOR");
		dims_ = terminal && !(none && *none);
	}
	// An exception must not cross the library: it is kept, and the call is stopped.
	static int on_token(uint32_t, const char* text, size_t length, void* payload) {
		auto* self = static_cast<AnswerStream*>(payload);
		try {
			self->push({text, length});
			return 0;
		} catch (...) {
			self->lost_ = std::current_exception();
			return 1;
		}
	}
	static int on_prefill(double done, double seconds_left, void* payload) {
		static_cast<AnswerStream*>(payload)->bar_.show("reading", done, seconds_left);
		return 0;
	}
	// Returns the answer; throws what stopped a callback.
	ChatMessage finish() {
		bar_.clear();
		if (!lost_) {
			kvrun_reply_part part = KVRUN_REPLY_PART_INIT;
			check_call(kvrun_reply_finish(reply_.get(), &part));
			show(part);
			dim(false);
			if (written_ && !line_end_) write_stdout("\n");
		}
		if (lost_) std::rethrow_exception(lost_);
		return std::move(message_);
	}
	bool started() const { return written_; }

 private:
	void push(std::string_view text) {
		bar_.clear();
		kvrun_reply_part part = KVRUN_REPLY_PART_INIT;
		check_call(kvrun_reply_push(reply_.get(), text.data(), text.size(), &part));
		show(part);
	}
	void show(const kvrun_reply_part& part) {
		message_.reasoning += part.reasoning;
		message_.text += part.content;
		if (terminal_ && *part.reasoning) write(part.reasoning, /*dimmed=*/true);
		if (*part.content) write(part.content, /*dimmed=*/false);
	}
	void write(std::string_view text, bool dimmed) {
		if (written_ && dimmed != dimmed_ && !line_end_) write_stdout("\n");
		dim(dimmed);
		written_ = true;
		dimmed_ = dimmed;
		line_end_ = text.ends_with('\n');
		write_stdout(terminal_ ? visible(text, /*lines=*/true) : std::string(text));
	}
	void dim(bool on) {
		if (dims_ && on != dim_now_) write_stdout(on ? "\033[2m" : "\033[0m");
		dim_now_ = on;
	}

	ReplyHandle reply_;
	bool terminal_, dims_ = false;
	bool written_ = false, line_end_ = false, dimmed_ = false, dim_now_ = false;
	ChatMessage message_;
	Progress bar_;
	std::exception_ptr lost_;
};

bool is_full(kvrun_status s) { return s == KVRUN_ENOMEM || s == KVRUN_ECONTEXT; }

// Where each token's text ends in the text of all of them, in bytes.
std::vector<size_t> text_ends(const ChatModel& model, std::span<const uint32_t> tokens) {
	std::vector<size_t> out;
	size_t alone = 0; // bytes of the token before, as the first one of a text
	for (size_t i = 0; i < tokens.size(); ++i) {
		const size_t pair = i ? model.text(&tokens[i - 1], 2).size() : 0;
		const size_t before = alone;
		alone = model.text(&tokens[i], 1).size();
		out.push_back(i ? out.back() + pair - before : alone);
	}
	return out;
}

} // namespace

bool Chat::ask(std::string text) {
	const Conversation before = conversation_;
	text = well_formed(attached_ + text);
	if (conversation_.open()) // two questions in a row are not what templates take
		conversation_.messages.back().text += "\n\n" + text;
	else
		conversation_.messages.push_back({/*user=*/true, std::move(text), {}});
	const bool done = answer(before);
	attached_.clear();
	return done;
}

bool Chat::retry() {
	if (conversation_.messages.empty()) fail_chat(KVRUN_EINVALID, "there is no question to answer again");
	const Conversation before = conversation_;
	if (!conversation_.open()) conversation_.messages.pop_back();
	return answer(before);
}

// The model's own tokens of earlier answers are kept where the tokenizer would cut their text in another way: the
// prompt is the session's tokens up to the last place at which the texts still agree and both end a token, then its
// own.
std::vector<uint32_t> Chat::prompt_tokens(bool answer) const {
	const std::vector<uint32_t> wanted = model_.tokens(conversation_.messages_json(), args_.think, answer);
	const std::vector<uint32_t> held = session_tokens(session_.get());
	const auto differ = std::ranges::mismatch(held, wanted);
	const size_t equal = size_t(differ.in1 - held.begin());
	if (equal == 0 || equal == held.size() || equal == wanted.size()) return wanted;
	// from the last token that is the same on: what a token's text is depends on the one before it
	const std::span<const uint32_t> old(held.begin() + ptrdiff_t(equal - 1), held.end());
	const std::span<const uint32_t> now(wanted.begin() + ptrdiff_t(equal - 1), wanted.end());
	const std::string old_text = model_.text(old.data(), old.size()), now_text = model_.text(now.data(), now.size());
	const std::vector<size_t> old_ends = text_ends(model_, old), now_ends = text_ends(model_, now);
	if (old_ends.back() != old_text.size() || now_ends.back() != now_text.size()) return wanted;
	const size_t common = size_t(std::ranges::mismatch(old_text, now_text).in1 - old_text.begin());
	size_t keep = 0, drop = 0; // tokens of `old` that are kept, and of `now` that they replace
	for (size_t i = 0, j = 0; i < old_ends.size() && j < now_ends.size() && old_ends[i] <= common;) {
		if (old_ends[i] == now_ends[j]) keep = i + 1, drop = j + 1;
		if (old_ends[i] <= now_ends[j])
			++i;
		else
			++j;
	}
	if (keep == 0) return wanted;
	std::vector<uint32_t> out(held.begin(), held.begin() + ptrdiff_t(equal - 1 + keep));
	out.insert(out.end(), now.begin() + ptrdiff_t(drop), now.end());
	return out;
}

uint32_t Chat::keep_common(const std::vector<uint32_t>& prompt) {
	uint32_t kept = 0;
	check_call(kvrun_session_keep_common(session_.get(), prompt.data(), prompt.size(), &kept));
	return kept;
}

// With --on-full drop-oldest there must be room for an answer: a quarter of the context, or what -n asks for if less.
bool Chat::too_long(size_t prompt) const {
	const uint32_t ctx = session_info(session_.get()).ctx;
	if (!args_.drops_oldest()) return prompt >= ctx;
	const size_t quarter = ctx / 4;
	return prompt + (args_.predict >= 0 ? std::min(size_t(args_.predict), quarter) : quarter) > ctx;
}

std::string Chat::full_line(size_t prompt) const {
	const kvrun_session_info i = session_info(session_.get());
	std::vector<std::string> choices = model_.larger_contexts(i.kv, i.ctx, prompt);
	for (const char* c : {"/undo", "/clear", "/set on-full drop-oldest"}) choices.push_back(c);
	return fmt::format("context full: the conversation has {} tokens, the context {} ({}); choose {}", prompt, i.ctx,
	                   i.kv, fmt::join(choices, ", "));
}

// Leaves out the oldest exchanges until the prompt fits; says how many. Throws where that does not help, or is not
// wanted.
std::string Chat::make_room(size_t prompt) {
	const std::string full = full_line(prompt);
	if (!args_.drops_oldest()) throw ChatError(KVRUN_ECONTEXT, full);
	size_t dropped = 0, now = prompt;
	do {
		if (!conversation_.leave_out_oldest()) throw ChatError(KVRUN_ECONTEXT, full);
		++dropped;
		now = model_.tokens(conversation_.messages_json(), args_.think).size();
	} while (too_long(now));
	return fmt::format("context full: left out the oldest {} question{} with {} answer{}; {} of {} tokens remain",
	                   dropped, dropped == 1 ? "" : "s", dropped == 1 ? "its" : "their", dropped == 1 ? "" : "s", now,
	                   prompt);
}

bool Chat::answer(const Conversation& before) {
	const AnswerInterrupt interrupt(canceller_.get());
	try {
		keep(); // a crash from here on loses the answer, not the question
		ChatMessage message;
		kvrun_status status = KVRUN_OK;
		for (;;) {
			const std::vector<uint32_t> prompt = prompt_tokens(/*answer=*/true);
			if (!too_long(prompt.size())) {
				status = generate(prompt, message);
				if (!is_full(status)) break;
			}
			say(make_room(prompt.size()));
		}
		if (status == KVRUN_ECANCELLED && message.text.empty()) {
			say("stopped; the question is taken back");
			conversation_ = before;
		} else {
			conversation_.messages.push_back(std::move(message));
		}
		++conversation_.answers;
		keep();
		if (last_.reason == KVRUN_STOP_CONTEXT)
			say("the answer ends here: " + full_line(session_info(session_.get()).n_tokens));
		return status == KVRUN_OK;
	} catch (...) {
		conversation_ = before;
		keep();
		throw;
	}
}

// KVRUN_OK and KVRUN_ECANCELLED: `out` is the answer so far. Other results: the context or the memory is used up.
kvrun_status Chat::generate(const std::vector<uint32_t>& prompt, ChatMessage& out) {
	const uint32_t kept = keep_common(prompt);
	AnswerStream stream(model_.reply(conversation_.messages_json(), args_.think), terminal_);
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	if (args_.predict >= 0) o.max_tokens = uint32_t(args_.predict);
	o.temperature = args_.temperature;
	o.top_k = uint32_t(args_.top_k);
	o.top_p = args_.top_p, o.min_p = args_.min_p;
	o.repeat_penalty = args_.repeat_penalty;
	o.repeat_last_n = uint32_t(args_.repeat_last);
	o.seed = seed_ + conversation_.answers;
	o.on_token = AnswerStream::on_token;
	o.on_prefill = AnswerStream::on_prefill;
	o.payload = &stream;
	o.canceller = canceller_.get();
	o.special = model_.features().special_markers > 1;
	if (args_.draft.given()) {
		const kvrun_session_info i = session_info(session_.get());
		if (i.takes_drafts)
			o.draft_max = args_.draft.draft_max();
		else
			say(fmt::format("no drafts: the model, or policy {}, cannot take back what was guessed wrongly", i.kv));
	}
	const GrammarHandle grammar = model_.grammar(conversation_.messages_json(), args_.think);
	check_call(kvrun_session_set_grammar(session_.get(), grammar.get()));
	kvrun_generate_result result = KVRUN_GENERATE_RESULT_INIT;
	const kvrun_status status = kvrun_generate(session_.get(), prompt.data() + kept, prompt.size() - kept, &o, &result);
	const std::string error = kvrun_last_error();
	out = stream.finish();
	last_ = result;
	answer_tokens_ += result.answer_tokens;
	decode_seconds_ += result.decode_seconds;
	if (status != KVRUN_OK && status != KVRUN_ECANCELLED && !is_full(status)) throw ChatError(status, error);
	// the context ran out behind the first words of the answer: what was shown stays
	return is_full(status) && stream.started() ? KVRUN_OK : status;
}

} // namespace kvrun
