// Answers of a chat: prompts that reuse cached tokens, streaming, and handling of a full context.
#include "engine/core/system/terminal.h"
#include "tools/answer/reply.h"
#include "tools/args_says.h"
#include "tools/chat/chat.h"
#include "tools/chat/input.h"
#include "tools/terminal.h"
#include <algorithm>
#include <cstdlib>
#include <fmt/ranges.h>
#include <span>

namespace kvrun {
namespace {

// Streams an answer to standard output.
class AnswerStream final : public ShownAnswer {
 public:
	AnswerStream(ReplyHandle reply, bool terminal) : ShownAnswer(std::move(reply)), terminal_(terminal) {
		const char* none = std::getenv("NO_COLOR");
		dims_ = terminal && sys::terminal_has_cursor() && !(none && *none);
	}
	// Returns the answer as far as it came. lost: why it could not be printed to its end, or null.
	ChatMessage finish(std::exception_ptr& lost) {
		bar_.clear();
		try {
			rethrow();
			show_rest();
			dim(false);
			if (written_ && !line_end_) write_stdout("\n");
		} catch (...) { lost = std::current_exception(); }
		return std::move(message_);
	}
	bool started() const { return written_; }

 private:
	bool reading(double done, double seconds_left) override {
		bar_.show("reading", done, seconds_left);
		return true;
	}
	void show(const kvrun_reply_part& part) override {
		bar_.clear();
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

	bool terminal_, dims_ = false;
	bool written_ = false, line_end_ = false, dimmed_ = false, dim_now_ = false;
	ChatMessage message_;
	Progress bar_;
};

bool is_full(kvrun_status s) { return s == KVRUN_ENOMEM || s == KVRUN_ECONTEXT; }

// Byte offset at which each token's text ends in the text of all tokens.
std::vector<size_t> text_ends(const ChatModel& model, std::span<const uint32_t> tokens) {
	std::vector<size_t> out;
	size_t alone = 0; // bytes of the previous token when it begins a text
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
	const Before before = now();
	text = well_formed(attached_.text + text);
	if (conversation_.open()) // templates do not accept two questions in a row
		conversation_.messages.back().text += "\n\n" + text;
	else
		conversation_.messages.push_back({/*user=*/true, std::move(text), {}, {}});
	std::vector<ChatMedia>& media = conversation_.messages.back().media;
	media.insert(media.end(), attached_.media.begin(), attached_.media.end());
	std::ranges::stable_sort(media, {}, &ChatMedia::kind);
	attached_ = {}; // waits again if the question is taken back
	return answer(before);
}

bool Chat::retry() {
	if (conversation_.messages.empty()) fail_status(KVRUN_EINVALID, "there is no question to answer again");
	const Before before = now();
	if (!conversation_.open()) conversation_.messages.pop_back();
	return answer(before);
}

// Keeps the model's own tokens of earlier answers even if the tokenizer would split their text differently: the
// prompt is the session's tokens up to the last place where the texts agree and both end a token, then the new
// tokens.
std::vector<uint32_t> Chat::prompt_tokens(bool answer) const {
	ChatPrompt prompt = chat_prompt();
	prompt.no_answer = !answer;
	const std::vector<uint32_t> wanted = model_.tokens(prompt);
	const std::vector<uint32_t> held = session_tokens(session_.get());
	const auto differ = std::ranges::mismatch(held, wanted);
	const size_t equal = size_t(differ.in1 - held.begin());
	if (equal == 0 || equal == held.size() || equal == wanted.size()) return wanted;
	const auto is_image = [](uint32_t t) { return t >= KVRUN_FIRST_IMAGE_ROW; }; // its text says nothing about it
	if (std::any_of(held.begin() + ptrdiff_t(equal), held.end(), is_image) ||
	    std::any_of(wanted.begin() + ptrdiff_t(equal), wanted.end(), is_image))
		return wanted;
	// starts at the last common token, because a token's text depends on the token before it
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

// With --on-full drop-oldest an answer must also fit: a quarter of the context, or -n tokens if that is less.
bool Chat::too_long(size_t prompt) const {
	const uint32_t ctx = session_info(session_.get()).ctx;
	if (!args_.drops_oldest()) return prompt >= ctx;
	const size_t quarter = ctx / 4;
	return prompt + (args_.predict >= 0 ? std::min(size_t(args_.predict), quarter) : quarter) > ctx;
}

std::string Chat::full_line(size_t prompt) const {
	const kvrun_session_info i = session_info(session_.get());
	std::vector<std::string> choices = model_.larger_contexts(i.kv, i.ctx, prompt);
	const bool drops = args_.drops_oldest();
	for (const char* c : {"/undo", "/clear"}) choices.push_back(c);
	if (!drops) choices.push_back("/set on-full drop-oldest");
	if (!is_interactive())
		choices.push_back(drops ? "or begin with -c N or --kv POLICY"
		                        : "or begin with -c N, --kv POLICY or --on-full drop-oldest");
	return fmt::format("context full: the conversation has {} tokens, the context {} ({}); choose {}", prompt, i.ctx,
	                   i.kv, fmt::join(choices, ", "));
}

// Leaves out the oldest exchanges until the prompt fits; returns a message with their number. Throws if that does not
// help or is not enabled.
std::string Chat::make_room(size_t prompt) {
	const std::string full = full_line(prompt);
	if (!args_.drops_oldest()) throw StatusError(KVRUN_ECONTEXT, full);
	size_t dropped = 0, now = prompt;
	do {
		if (!conversation_.leave_out_oldest()) throw StatusError(KVRUN_ECONTEXT, full);
		++dropped;
		now = model_.tokens(chat_prompt()).size();
	} while (too_long(now));
	return fmt::format("context full: left out the oldest {} question{} with {} answer{}; {} of {} tokens remain",
	                   dropped, dropped == 1 ? "" : "s", dropped == 1 ? "its" : "their", dropped == 1 ? "" : "s", now,
	                   prompt);
}

bool Chat::answer(const Before& before) {
	const AnswerInterrupt interrupt(canceller_.get());
	ChatMessage message;
	kvrun_status status = KVRUN_OK;
	std::exception_ptr lost;
	try {
		keep(); // a later crash loses the answer, but not the question
		for (;;) {
			const std::vector<uint32_t> prompt = prompt_tokens(/*answer=*/true);
			if (!too_long(prompt.size())) {
				status = generate(prompt, message, lost);
				if (!is_full(status)) break;
			}
			say(make_room(prompt.size()));
		}
	} catch (...) {
		go_back(before);
		keep();
		throw;
	}
	if (!message.text.empty() || status == KVRUN_OK) {
		conversation_.messages.push_back(std::move(message));
	} else if (before.conversation.messages.size() > conversation_.messages.size()) {
		if (!asked_to_end() && !lost) say("stopped; the answer before stays");
		go_back(before);
	} else if (!asked_to_end() && !lost) { // else the question stays, for /retry
		go_back(before);
		say(attached_.empty() ? "stopped; the question is taken back"
		                      : "stopped; the question is taken back; what was attached waits for the next message");
	}
	++conversation_.answers;
	keep(); // if that fails, the answer is still here, and is written with the next one
	if (lost) std::rethrow_exception(lost);
	if (last_.reason == KVRUN_STOP_CONTEXT)
		say("the answer ends here: " + full_line(session_info(session_.get()).n_tokens));
	if (is_verbose()) say_lines(stats());
	return status == KVRUN_OK;
}

// On KVRUN_OK and KVRUN_ECANCELLED, `out` is the answer so far. Other results: context or memory is exhausted.
// lost: why the answer ended before its end, which is not for the user to mend: it could not be printed, or the device
// failed; or null.
kvrun_status Chat::generate(const std::vector<uint32_t>& prompt, ChatMessage& out, std::exception_ptr& lost) {
	const uint32_t kept = keep_common(prompt);
	const ChatPrompt chat = chat_prompt();
	ReplyHandle reply;
	check_call(new_reply(model_.engine(), chat, reply));
	AnswerStream stream(std::move(reply), terminal_);
	std::vector<const char*> breakers;
	kvrun_generate_options o = args_.options(seed_ + conversation_.answers, breakers);
	if (args_.predict >= 0) o.max_tokens = uint32_t(args_.predict);
	std::vector<const char*> stops;
	for (const std::string& s : args_.stops) stops.push_back(s.c_str());
	o.stops = stops.data(), o.n_stops = stops.size();
	o.ignore_eos = args_.ignore_eos;
	o.bias = args_.logit_bias.data(), o.n_bias = args_.logit_bias.size();
	stream.set_on(o);
	o.canceller = canceller_.get();
	o.special = model_.features().special_markers > 1;
	if (args_.draft.given()) {
		const kvrun_session_info i = session_info(session_.get());
		if (i.takes_drafts)
			o.draft_max = args_.draft.draft_max();
		else
			say("no drafts: " + why_no_drafts(i.kv));
	}
	const GrammarHandle grammar = model_.grammar(chat);
	check_call(kvrun_session_set_grammar(session_.get(), grammar.get()));
	kvrun_generate_result result = KVRUN_GENERATE_RESULT_INIT;
	const kvrun_status status = kvrun_generate(session_.get(), prompt.data() + kept, prompt.size() - kept, &o, &result);
	const std::string error = kvrun_last_error();
	out = stream.finish(lost);
	last_ = result;
	answer_tokens_ += result.answer_tokens;
	decode_seconds_ += result.decode_seconds;
	if (lost) return KVRUN_ECANCELLED;
	if (status != KVRUN_OK && status != KVRUN_ECANCELLED && !is_full(status)) {
		if (status != KVRUN_EDEVICE && status != KVRUN_EIO && status != KVRUN_EINTERNAL)
			throw StatusError(status, error);
		lost = std::make_exception_ptr(StatusError(status, error));
		return KVRUN_ECANCELLED;
	}
	// the context filled up after the answer began: the text that was shown is kept
	return is_full(status) && stream.started() ? KVRUN_OK : status;
}

} // namespace kvrun
