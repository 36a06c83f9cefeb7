// An answer in the form of llama.cpp's own routes.
#include "tools/serve/native_answer.h"

namespace kvrun::serve {

void NativeAnswer::begin() {
	if (!stream_ || out_.begun()) return;
	out_.begin();
	if (!text_.empty()) piece(std::exchange(text_, {}));
}

void NativeAnswer::token(Json t) {
	if (tokens_.is_null()) tokens_ = Json::array();
	tokens_.push_back(std::move(t));
}

void NativeAnswer::piece(std::string_view text) {
	if (!stream_) {
		text_ += text;
		return;
	}
	Json j{{"index", 0}, {"content", std::string(text)}, {"stop", false}};
	if (Json p = std::exchange(tokens_, Json()); !p.is_null()) j["completion_probabilities"] = std::move(p);
	out_.data(j);
}

void NativeAnswer::end(const Ended& e) {
	const bool word = e.result.reason == KVRUN_STOP_STRING;
	Json j{{"index", 0},
	       {"content", text_},
	       {"stop", true},
	       {"stop_type", was_cut(e.result.reason) ? "limit"
	                     : word                   ? "word"
	                                              : "eos"},
	       {"stopping_word", word && e.result.stop < stops_.size() ? stops_[e.result.stop] : ""},
	       {"model", model_},
	       {"tokens_predicted", e.result.answer_tokens},
	       {"tokens_evaluated", e.reused + e.result.prompt_tokens},
	       {"tokens_cached", e.reused},
	       {"truncated", false},
	       {"timings", timings_json(e)},
	       {"kv", kv_json(e)}};
	if (Json p = std::exchange(tokens_, Json()); !p.is_null()) j["completion_probabilities"] = std::move(p);
	out_.out().note(answer_note(e));
	if (!stream_) return out_.out().respond({200, dump(j)});
	out_.data(j);
	out_.end();
}

void NativeAnswer::fail(const ApiError& e) {
	if (!std::exchange(failed_, true)) out_.fail(e);
}

} // namespace kvrun::serve
