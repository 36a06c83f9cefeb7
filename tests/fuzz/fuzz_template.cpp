// libFuzzer target: a template, a zero byte, and messages or variables as JSON; then an answer through the parser of
// calls. A character that occurs only in the conversation must be marked as the conversation's, in valid UTF-8.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/chat/reply.h"
#include <cstdlib>

using namespace kvrun;

namespace {

constexpr std::string_view kMine = "\xee\x80\x80"; // U+E000: in no template and in every message

template <class F> void expect_errors_only(F&& f) {
	try {
		f();
	} catch (const Error& e) {
		if (e.code != Code::Format && e.code != Code::Invalid) std::abort();
		if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
	}
}

void check(const Rendered& r) {
	for (size_t i = 0; i < r.segments.size(); ++i) {
		const Rendered::Segment& s = r.segments[i];
		if (s.text.empty() || (i > 0 && r.segments[i - 1].from_template == s.from_template)) std::abort();
		if (s.from_template && s.text.find(kMine) != s.text.npos) std::abort();
		for (size_t at = 0; at < s.text.size();) {
			const size_t n = utf8_char(s.text, at);
			if (n == 0) std::abort();
			at += n;
		}
	}
}

void reply(std::string_view text, ToolFormat format) {
	ReplyParser::Options o;
	o.tools = format;
	o.tool_variant = text.size() % 2;
	if (text.size() % 3 == 0) o.tool_begin = "<|tool_call_start|>", o.tool_end = "<|tool_call_end|>";
	if (text.size() % 5) o.definitions = Json::parse(R"([{"name": "f"}])"); // its calls are reported early
	o.think_begin = "<think>";
	o.think_end = "</think>";
	const auto parse = [&](size_t piece) {
		ReplyParser parser(o);
		std::string shown, calls, told;
		uint32_t index = UINT32_MAX;
		const auto add = [&](const ReplyParser::Part& p) {
			shown += p.content;
			for (const ToolCall& c : p.calls) calls += c.id + c.name + c.arguments;
			for (const ReplyParser::CallDelta& d : p.deltas) {
				if (d.index != index && (d.index != index + 1 || d.id.empty())) std::abort();
				index = d.index;
				told += d.id + d.name + d.arguments;
			}
		};
		for (size_t at = 0; at < text.size(); at += piece) add(parser.push(text.substr(at, piece)));
		add(parser.finish());
		if (told != calls) std::abort();
		return std::pair(shown, calls);
	};
	if (parse(1) != parse(text.size() + 1)) std::abort(); // however it is cut
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	if (size == 0) return 0;
	const std::string_view all(reinterpret_cast<const char*>(data) + 1, size - 1);
	const size_t cut = std::min(all.find('\0'), all.size());
	const std::string text(all.substr(0, cut));
	const std::string_view rest = all.substr(std::min(cut + 1, all.size()));
	const Json given = Json::parse(rest, nullptr, /*allow_exceptions=*/false);
	ChatInput in;
	in.add_generation_prompt = data[0] & 1;
	in.bos_token = "<s>";
	in.eos_token = "</s>";
	if (given.is_array()) {
		in.messages = given;
	} else {
		in.messages = Json::parse(R"([{"role": "system", "content": ""}, {"role": "user", "content": ""},
			{"role": "assistant", "content": null, "tool_calls": [{"id": "abcdef123",
				"function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]},
			{"role": "tool", "content": "7"}, {"role": "user", "content": [{"type": "text", "text": ""}]}])");
		for (int i : {0, 1}) in.messages[size_t(i)]["content"] = std::string(kMine) + "hi" + std::string(kMine);
		if (data[0] & 2)
			in.tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])");
		if (given.is_object()) in.variables = given;
	}
	ChatLimits limits;
	limits.steps = 20'000;
	limits.output_bytes = 1 << 20;
	limits.value_bytes = 16 << 20;
	if (text.find(kMine) == text.npos && text.find('\\') == text.npos) // an escape could also produce it
		expect_errors_only([&] { check(ChatTemplate(text).render(in, limits)); });
	else
		expect_errors_only([&] { (void)ChatTemplate(text).render(in, limits); });
	if (data[0] & 4) expect_errors_only([&] { (void)chat_features(ChatTemplate(text)); });
	reply(rest.substr(0, 300), ToolFormat(data[0] / 8 % 15));
	return 0;
}
