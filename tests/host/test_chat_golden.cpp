// Chat templates beside python3-jinja2: language features, and conversations through real templates.
#include "engine/core/error.h"
#include "models/chat/builtin.h"
#include "tests/support/assets.h"
#include "tests/support/chat.h"
#include "tests/support/temp_folder.h"
#include <cstdlib>
#include <doctest/doctest.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif

using namespace kvrun;

namespace {

const std::string kGolden = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/chat";

Json read_json(const std::string& path) {
	INFO(path);
	Json j = Json::parse(file_text(path), nullptr, false);
	REQUIRE(j.is_array());
	return j;
}

// Snippets, between lines of ----; ␍ stands for a carriage return, which editors remove.
std::vector<std::string> snippets() {
	const std::string all = file_text(kGolden + "/snippets.txt");
	constexpr std::string_view kReturn = "␍", kBetween = "\n----\n";
	std::vector<std::string> out(1);
	for (size_t at = 0; at + 1 < all.size();) { // except for the newline at the end
		const std::string_view rest = std::string_view(all).substr(at);
		if (rest.starts_with(kBetween)) {
			out.emplace_back();
			at += kBetween.size();
		} else {
			const bool is_return = rest.starts_with(kReturn);
			out.back() += is_return ? '\r' : all[at];
			at += is_return ? kReturn.size() : 1;
		}
	}
	return out;
}

// The result of a template, against {"ok": text}, {"error": kind} or {"refused": message of the template}.
void compare(const Json& expected, const std::string& text, const std::string& error) {
	if (expected.contains("ok")) {
		CHECK(error == "");
		CHECK(text == expected["ok"].get<std::string>());
	} else {
		CHECK(error != "");
		CHECK(error.find('\n') == error.npos);
		if (expected.contains("refused")) CHECK(error.find(expected["refused"].get<std::string>()) != error.npos);
	}
}

std::string template_text(const std::string& name) {
	if (const std::string_view text = builtin_chat_template(name); !text.empty()) return std::string(text);
	const std::string path = shared_asset("chat_templates/" + name + ".jinja");
	return path.empty() ? "" : file_text(path);
}

void compare_folder(const std::string& folder) {
	const Json chats = read_json(folder + "/conversations.json");
	size_t n = 0;
	for (const auto& entry : std::filesystem::directory_iterator(folder)) {
		const std::string name = entry.path().stem().string();
		if (entry.path().extension() != ".json" || name == "conversations" || name == "snippets") continue;
		const std::string text = template_text(name);
		if (text.empty()) continue;
		const ChatTemplate t(text);
		const Json expected = read_json(entry.path().string());
		REQUIRE(expected.size() == chats.size());
		++n;
		for (size_t i = 0; i < chats.size(); ++i) {
			INFO("template ", name, ", conversation ", i, ": ", chats[i].dump());
			std::string out, error;
			try {
				out = t.render(chat_input(chats[i])).text();
			} catch (const Error& e) { error = e.what(); }
			compare(expected[i], out, error);
		}
	}
	CHECK(n >= builtin_chat_templates().size());
}

} // namespace

TEST_CASE("jinja: every feature gives what python3-jinja2 gives") {
	const std::vector<std::string> all = snippets();
	const Json expected = read_json(kGolden + "/snippets.json");
	REQUIRE(all.size() == expected.size());
	REQUIRE(all.size() >= 250);
	for (size_t i = 0; i < all.size(); ++i) {
		INFO("snippet ", i, ": ", all[i]);
		std::string out, error;
		try {
			out = ChatTemplate(all[i]).render(chat_input(Json{{"messages", Json::array()}})).text();
		} catch (const Error& e) { error = e.what(); }
		compare(expected[i], out, error);
	}
}

TEST_CASE("chat templates: conversations give what python3-jinja2 gives, byte for byte") { compare_folder(kGolden); }

#ifndef _WIN32 // no python3 there
TEST_CASE("chat templates: the same with conversations made up now, if python3-jinja2 is here") {
	const TempFolder folder;
	const std::string command = std::string("python3 -B '") + KVRUN_SOURCE_DIR +
	                            "/tools/dev/make_chat_golden.py' --random 60 --out '" + folder.path.string() +
	                            "' >/dev/null 2>&1";
	const int status = std::system(command.c_str());
	const int rc = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	if (rc == 77 || rc == 127) {
		skip("python3-jinja2 is not installed; new conversations are left out");
	} else {
		CHECK(rc == 0);
		compare_folder(folder.path);
	}
}
#endif
