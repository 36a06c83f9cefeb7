// Errors of the library, worded for users of a window instead of a command line.
#include "tools/desktop/words.h"
#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace kvrun::desktop {

std::string window_words(std::string text) {
	static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
	    {"; choose one with --chat-template: ", ". Choose one in Settings, Expert, Chat template: "},
	    {"--chat-template NAME takes another template", "Settings, Expert has other chat templates"},
	    {"--chat-template", "the chat template in Settings, Expert"},
	    {"no policy fits: shorten the prompt or raise --kv-budget", "shorten the question"},
	    {"no policy fits, shorten the prompt or raise --kv-budget", "shorten the question"},
	    {", or raise --kv-budget", ""},
	    {"; raise --kv-budget", "; less memory per token, or a smaller model, makes room"},
	    {"raise --kv-budget", "use less memory per token"},
	    {"a smaller -c, a --kv with fewer bits", "a shorter conversation, less memory for conversations"},
	    {"a smaller -c or a --kv with fewer bits", "a shorter conversation or less memory for conversations"},
	    {"a smaller -c or a --kv", "a shorter conversation or another memory"},
	    {"with a --kv with fewer bits", "with less memory for conversations"},
	    {"; raise -c or shorten it", ""},
	    {"; raise -c", ""},
	    {"raise -c", "choose a greater length"},
	    {"lower -c", "choose a shorter conversation"},
	    {"raise --host-budget, or give --offload-dir", "choose another memory for conversations"},
	    {"--device cpu", "the device cpu"},
	    {"one with --device", "one in Settings"},
	    {"--device", "the device in Settings"},
	    {"--kv ", "memory "},
	    {"; 'kvrun plan --help' lists them", ""},
	    {" (remembered; `kvrun devices --retry` tests it again)", ""},
	    {" (remembered; `kvrun devices --retry` tries it again)", ""},
	    {"KV policy ", "memory "},
	};
	for (const auto& [from, to] : kWords)
		for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
	return text;
}

std::string json_fault(std::string what) {
	const size_t end = what.find("] ");
	return what.starts_with("[json.exception.") && end != what.npos ? what.substr(end + 2) : what;
}

std::string human_size(unsigned long long bytes) {
	double v = double(bytes);
	const char* unit = "B";
	for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
		if (v < 1000) break;
		v /= 1024, unit = next;
	}
	return fmt::format("{:.{}f} {}", v, v < 10 && *unit != 'B' ? 1 : 0, unit);
}

std::string human_count(unsigned long long n) {
	std::string out = fmt::format("{}", n);
	for (size_t at = out.size(); at > 3;) out.insert(at -= 3, "\u202f");
	return out;
}

} // namespace kvrun::desktop
