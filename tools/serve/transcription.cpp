// OpenAI's transcriptions: a form with a sound becomes a conversation that asks for its text.
#include "tools/serve/transcription.h"
#include "tools/serve/answers.h"
#include "tools/text.h"

namespace kvrun::serve {
namespace {

constexpr const char* kInstruction = "Transcribe audio to text"; // as in llama.cpp's server

// A field's text as JSON of another kind; as a text where it is none.
Json value_of(const std::string& text) {
	const Json j = json_or_null(text);
	return j.is_number() || j.is_boolean() ? j : Json(text);
}

} // namespace

TranscriptionRequest transcription_request(std::string_view content_type, std::string_view body, const Defaults& d) {
	TranscriptionRequest out;
	std::string instruction = kInstruction, language;
	Json fields{{"temperature", 0}, {"chat_template_kwargs", {{"enable_thinking", false}}}};
	bool file = false;
	for (const FormPart& p : parse_form(content_type, body)) {
		const std::string text(p.content.substr(0, 1 << 16));
		if (p.name == "file") {
			if (file) throw ApiError(400, "file is given twice; send one sound", "file");
			out.file = p.content, file = true;
		} else if (p.file) {
			throw ApiError(400, "the form has a file that is called '" + p.name + "', expected file", "file");
		} else if (p.content.size() > text.size()) {
			throw ApiError(400, "a field of the form is longer than 64 KiB", p.name);
		} else if (p.name == "prompt") {
			if (!text.empty()) instruction = text;
		} else if (p.name == "language") {
			language = text;
		} else if (p.name == "response_format") {
			if (text != "json" && text != "text")
				throw ApiError(
				    400, "response_format is " + shown(Json(text)) + ", expected json or text: the model says no times",
				    p.name, "unsupported_parameter");
			out.plain = text == "text";
		} else {
			fields[p.name] = p.name == "model" ? Json(text) : value_of(text);
		}
	}
	if (!file) throw ApiError(400, "the form has no file; send a sound as file", "file");
	if (!language.empty()) instruction += " (language: " + language + ")";
	fields["messages"] = Json::array({{{"role", "user"}, {"content", instruction}}});
	out.chat = chat_request(fields, d);
	if (out.chat.n != 1) throw ApiError(400, "n is more than one; a sound has one transcription", "n");
	if (out.plain && out.chat.stream)
		throw ApiError(400, "a stream is JSON; leave response_format out", "response_format");
	return out;
}

void TranscriptionRequest::add_sound(const std::string& id) {
	Json messages = json_or_null(chat.prompt.messages);
	Json text = messages[0]["content"];
	messages[0]["content"] =
	    Json::array({{{"type", "audio"}, {"id", id}}, {{"type", "text"}, {"text", std::move(text)}}});
	chat.prompt.messages = dump(messages);
}

TranscriptionAnswer::TranscriptionAnswer(std::shared_ptr<Responder> out, const TranscriptionRequest& r,
                                         ReplyHandle reply, size_t sound)
    : out_(std::move(out), r.chat.ping_s), stream_(r.chat.stream), plain_(r.plain), reply_(std::move(reply)),
      sound_(sound) {}

void TranscriptionAnswer::take(const kvrun_reply_part& part) {
	if (!*part.content) return;
	text_ += part.content;
	if (stream_) out_.data({{"type", "transcript.text.delta"}, {"delta", part.content}});
}

void TranscriptionAnswer::end(const Ended& e) {
	take(reply_.finish(was_cut(e.result.reason)));
	out_.out().note(answer_note(e));
	const size_t input = e.reused + e.result.prompt_tokens, output = e.result.answer_tokens;
	const Json usage{{"type", "tokens"},
	                 {"input_tokens", input},
	                 {"input_token_details", {{"text_tokens", input - sound_}, {"audio_tokens", sound_}}},
	                 {"output_tokens", output},
	                 {"total_tokens", input + output}};
	if (stream_) {
		out_.data({{"type", "transcript.text.done"}, {"text", text_}, {"usage", usage}});
		out_.done();
		return out_.end();
	}
	if (plain_) return out_.out().respond({200, well_formed(text_) + "\n", "text/plain; charset=utf-8"});
	out_.out().respond({200, dump({{"text", text_}, {"usage", usage}})});
}

} // namespace kvrun::serve
