// Forms as bodies of requests, and transcriptions that are asked for in them.
#include "tools/serve/multipart.h"
#include "tools/serve/transcription.h"
#include <doctest/doctest.h>

using namespace kvrun;
using namespace kvrun::serve;

namespace {

constexpr const char* kType = "multipart/form-data; boundary=xYz";

std::string part(const std::string& header, const std::string& content) {
	return "--xYz\r\nContent-Disposition: form-data; " + header + "\r\n\r\n" + content + "\r\n";
}
const std::string kEnd = "--xYz--\r\n";

// What the error says; empty if there is none.
std::string refusal(const std::string& body, const std::string& type = kType) {
	try {
		(void)parse_form(type, body);
		return "";
	} catch (const ApiError& e) { return e.what(); }
}

TranscriptionRequest asked(const std::string& body) { return transcription_request(kType, body, Defaults()); }
std::string wrong_field(const std::string& body) {
	try {
		(void)asked(body);
		return "";
	} catch (const ApiError& e) { return e.param + ": " + e.what(); }
}

} // namespace

TEST_CASE("serve: forms have fields and files, whose content may be any bytes") {
	const std::string odd("a\r\n--xY\r\n--xYzz\0\xff--xYz", 20);
	const std::string body = part("name=\"model\"", "m") + part("name=\"file\"; filename=\"a \\\"b\\\".wav\"", odd) +
	                         part("name=empty", "") + kEnd + "what follows is nothing";
	const auto parts = parse_form("Multipart/Form-Data; charset=utf-8; boundary=\"xYz\"", body);
	REQUIRE(parts.size() == 3);
	CHECK(parts[0].name == "model");
	CHECK(!parts[0].file);
	CHECK(parts[0].content == "m");
	CHECK(parts[1].file == "a \"b\".wav");
	CHECK(parts[1].content == odd);
	CHECK(parts[2].name == "empty");
	CHECK(parts[2].content.empty());
	CHECK(parse_form(kType, "--xYz--").empty());
	CHECK(parse_form(kType, "--xYz \r\ncontent-disposition:form-data;name=a\r\n\r\n1\r\n--xYz--")[0].content == "1");
}

TEST_CASE("serve: forms that are none are refused in one line") {
	const std::string good = part("name=\"a\"", "1") + kEnd;
	CHECK(refusal(good).empty());
	const auto has = [](const std::string& text, const std::string& wanted) {
		CHECK_MESSAGE(text.find(wanted) != text.npos, text);
		CHECK(text.find('\n') == text.npos);
	};
	has(refusal(good, "application/json"), "not multipart/form-data");
	has(refusal(good, ""), "not multipart/form-data");
	has(refusal(good, "multipart/form-data"), "no boundary");
	has(refusal(good, "multipart/form-data; boundary=\"xYz"), "without its end");
	has(refusal(good, "multipart/form-data; boundary=" + std::string(71, 'x')), "no boundary");
	has(refusal("x" + good), "does not begin with its boundary");
	has(refusal(good, "multipart/form-data; boundary=other"), "does not begin with its boundary");
	has(refusal(part("name=\"a\"", "1")), "its last boundary is missing");
	has(refusal("--xYzq\r\n" + good), "has no line end");
	has(refusal("--xYz\r\nContent-Disposition: form-data; name=a\r\n\r\n1"), "its last boundary is missing");
	has(refusal("--xYz\r\nno colon\r\n\r\n1\r\n" + kEnd), "without a colon");
	has(refusal("--xYz\r\n\r\n1\r\n" + kEnd), "has no name");
	has(refusal(part("filename=x", "1") + kEnd), "has no name");
	has(refusal(part("name=\"\x01\"", "1") + kEnd), "characters of ASCII");
	has(refusal(part("name=\"" + std::string(101, 'x') + "\"", "1") + kEnd), "characters of ASCII");
	has(refusal(part("name=a\r\nX: " + std::string(5000, 'x'), "1") + kEnd), "within 4096 bytes");
	has(refusal(part("name=a\r\nContent-Transfer-Encoding: base64", "1") + kEnd), "send it as it is");
	has(refusal("--xYz\r\nContent-Disposition: attachment; name=a\r\n\r\n1\r\n" + kEnd), "no form-data");
	std::string many;
	for (size_t i = 0; i <= kMostFormParts; ++i) many += part("name=a", "1");
	has(refusal(many + kEnd), "more than 64 parts");

	for (size_t n = 0; n < good.size(); ++n) refusal(good.substr(0, n));
	const std::string whole = part("name=\"model\"", "m") + part("name=\"file\"; filename=\"a\"", "bytes") + kEnd;
	uint32_t random = 1;
	for (int i = 0; i < 5000; ++i) {
		std::string bad = whole;
		for (int k = 0; k < 3; ++k) {
			random = random * 1664525 + 1013904223;
			const size_t at = (random >> 8) % bad.size();
			if (k == 0 && i % 3 == 0)
				bad.erase(at, 1 + random % 5);
			else
				bad[at] = "\r\n-;\"=: \\x\0\xff"[random % 12];
		}
		for (const FormPart& p : [&] {
			     try {
				     return parse_form(kType, bad);
			     } catch (const ApiError&) { return std::vector<FormPart>(); }
		     }())
			CHECK((p.content.data() >= bad.data() && p.content.data() + p.content.size() <= bad.data() + bad.size()));
	}
}

TEST_CASE("serve: a transcription is a conversation with the sound in front of an instruction") {
	const std::string file = part("name=\"file\"; filename=\"a.wav\"", "RIFF");
	TranscriptionRequest r = asked(file + part("name=model", "m") + kEnd);
	CHECK(r.file == "RIFF");
	CHECK(!r.plain);
	CHECK(!r.chat.stream);
	CHECK(r.chat.sampling.temperature == 0);
	r.add_sound("0123456789abcdef");
	CHECK(Json::parse(r.chat.prompt.messages) == Json::parse(R"([{"role": "user", "content": [
	    {"type": "audio", "id": "0123456789abcdef"}, {"type": "text", "text": "Transcribe audio to text"}]}])"));
	r = asked(part("name=language", "de") + part("name=temperature", "0.5") + part("name=stream", "true") + file +
	          part("name=prompt", "Write it down") + part("name=max_tokens", "7") +
	          part("name=\"timestamp_granularities[]\"", "word") + kEnd);
	CHECK(Json::parse(r.chat.prompt.messages)[0]["content"] == "Write it down (language: de)");
	CHECK(r.chat.sampling.temperature == 0.5);
	CHECK(r.chat.sampling.max_tokens == 7);
	CHECK(r.chat.stream);
	CHECK(asked(file + part("name=response_format", "text") + kEnd).plain);

	CHECK(wrong_field(kEnd) == "file: the form has no file; send a sound as file");
	CHECK(wrong_field(file + file + kEnd).starts_with("file: file is given twice"));
	CHECK(wrong_field(file + part("name=audio; filename=x", "1") + kEnd).find("called 'audio', expected file") !=
	      std::string::npos);
	CHECK(wrong_field(file + part("name=response_format", "srt") + kEnd).find("expected json or text") !=
	      std::string::npos);
	CHECK(wrong_field(file + part("name=response_format", "text") + part("name=stream", "true") + kEnd)
	          .starts_with("response_format: "));
	CHECK(wrong_field(file + part("name=temperature", "hot") + kEnd).starts_with("temperature: "));
	CHECK(wrong_field(file + part("name=n", "2") + kEnd).starts_with("n: "));
	CHECK(wrong_field(file + part("name=prompt", std::string(70000, 'x')) + kEnd).starts_with("prompt: a field"));
}
