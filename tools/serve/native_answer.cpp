// An answer in the form of llama.cpp's own routes.
#include "tools/serve/native_answer.h"

namespace kvrun::serve {
namespace {

constexpr int kNoSlot = -1; // answers have no places of their own here

Json settings_of(const GenerationRequest& r, size_t index) {
	Json out = sampling_json(r.sampling);
	out["seed"] = r.sampling.seed + index % r.n, out["max_tokens"] = out["n_predict"];
	out["stop"] = r.sampling.stops, out["stream"] = r.stream, out["grammar"] = r.form.gbnf;
	out["ignore_eos"] = r.sampling.ignore_eos, out["n_probs"] = r.sampling.logprobs.value_or(0);
	return out;
}

// Those of the fields that there are, each under its whole name.
Json only_fields(const Json& all, const std::vector<std::string>& fields) {
	Json out = Json::object();
	for (const std::string& name : fields) {
		const Json* at = &all;
		for (size_t from = 0; at && from <= name.size();) {
			const size_t to = std::min(name.find('/', from), name.size());
			const auto next = at->is_object() ? at->find(name.substr(from, to - from)) : at->end();
			at = next == at->end() ? nullptr : &*next;
			from = to + 1;
		}
		if (at) out[name] = *at;
	}
	return out;
}

} // namespace

NativeAnswer::NativeAnswer(std::shared_ptr<NativeAnswers> all, size_t index, const GenerationRequest& r, const Model& m,
                           const std::vector<uint32_t>& prompt, bool echo)
    : all_(std::move(all)), index_(index), stream_(r.stream), progress_(r.stream && r.progress),
      live_timings_(r.live_timings), stops_(r.sampling.stops), form_(r.native), model_(m.id()),
      prompt_(m.text(prompt, KVRUN_TOKENS_SPECIAL)), n_prompt_(prompt.size()), settings_(settings_of(r, index)),
      text_(echo ? m.text(prompt, 0) : "") {}

void NativeAnswer::chosen(uint32_t token) {
	++n_tokens_;
	pace_.token();
	if (form_.tokens || stream_) ids_.push_back(token); // as llama.cpp does
}

void NativeAnswer::begin() {
	if (!stream_ || std::exchange(begun_, true)) return;
	all_->out.begin();
	if (!text_.empty()) piece(std::exchange(text_, {}));
	if (progress_ && pace_.reads()) show_progress(0);
}

void NativeAnswer::reading(double done, double left) {
	if (progress_)
		show_progress(done);
	else
		all_->out.reading(done, left);
}

void NativeAnswer::show_progress(double done) {
	Json p = pace_.progress(done);
	if (p.is_null() || all_->failed) return;
	Json j = part("");
	j["prompt_progress"] = std::move(p);
	all_->out.data(j);
}

Json NativeAnswer::part(std::string_view text) {
	return {{"index", index_},
	        {"content", std::string(text)},
	        {"tokens", ids()},
	        {"stop", false},
	        {"id_slot", kNoSlot},
	        {"tokens_predicted", n_tokens_},
	        {"tokens_evaluated", n_prompt_}};
}

void NativeAnswer::token(Json t) {
	if (tokens_.is_null()) tokens_ = Json::array();
	tokens_.push_back(std::move(t));
}

void NativeAnswer::piece(std::string_view text) {
	has_line_ |= text.find('\n') != text.npos;
	if (!stream_) {
		text_ += text;
		return;
	}
	Json j = part(text);
	if (Json p = std::exchange(tokens_, Json()); !p.is_null()) j["completion_probabilities"] = std::move(p);
	if (live_timings_ && pace_.answers()) j["timings"] = pace_.timings();
	if (!all_->failed) all_->out.data(j);
}

void NativeAnswer::end(const Ended& e) {
	if (all_->failed) return;
	const bool word = e.result.reason == KVRUN_STOP_STRING;
	Json j{{"index", index_},
	       {"content", text_},
	       {"tokens", ids()},
	       {"id_slot", kNoSlot},
	       {"stop", true},
	       {"stop_type", was_cut(e.result.reason) ? "limit"
	                     : word                   ? "word"
	                                              : "eos"},
	       {"stopping_word", word && e.result.stop < stops_.size() ? stops_[e.result.stop] : ""},
	       {"model", model_},
	       {"tokens_predicted", e.result.answer_tokens},
	       {"tokens_evaluated", e.reused + e.result.prompt_tokens},
	       {"tokens_cached", e.reused},
	       {"generation_settings", std::move(settings_)},
	       {"prompt", prompt_},
	       {"has_new_line", has_line_},
	       {"truncated", e.result.reason == KVRUN_STOP_CONTEXT},
	       {"timings", timings_json(e)},
	       {"kv", kv_json(e)}};
	if (Json p = std::exchange(tokens_, Json()); !p.is_null()) j["completion_probabilities"] = std::move(p);
	if (!form_.fields.empty()) j = only_fields(j, form_.fields);
	EventStream& out = all_->out;
	out.out().note(answer_note(e));
	if (stream_) out.data(j);
	all_->whole[index_] = std::move(j);
	if (--all_->left) return;
	if (stream_) return out.end();
	out.out().respond({200, dump(all_->whole.size() == 1 ? all_->whole[0] : Json(all_->whole))});
}

void NativeAnswer::fail(const ApiError& e) {
	if (!std::exchange(all_->failed, true)) all_->out.fail(e);
}

} // namespace kvrun::serve
