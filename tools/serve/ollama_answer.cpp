// An answer in the form of Ollama's API, whole or line by line.
#include "tools/answer/reply.h"
#include "tools/serve/answers.h"
#include "tools/serve/ollama.h"

namespace kvrun::serve {
namespace {

class OllamaAnswer final : public Listener {
 public:
	OllamaAnswer(std::shared_ptr<Responder> out, std::string model, bool chat, bool stream, ReplyHandle reply)
	    : out_(std::move(out)), model_(std::move(model)), chat_(chat), stream_(stream), raw_(!reply),
	      reply_(std::move(reply)) {}

	bool gone() const override { return failed_ || out_->gone(); }
	void begin() override {
		if (stream_ && !std::exchange(begun_, true)) out_->begin({200, "", "application/x-ndjson"});
	}
	void token(Json t) override { logprobs_.push_back(std::move(t)); }
	void piece(std::string_view text) override {
		if (raw_)
			add(std::string(text), "", Json::array());
		else
			take(reply_.push(text));
	}
	void end(const Ended& e) override {
		if (failed_) return;
		if (!raw_) take(reply_.finish(was_cut(e.result.reason)));
		Json j = stream_ ? part("", "", Json::array()) : part(text_, thought_, calls_);
		const auto ns = [](double seconds) { return int64_t(seconds * 1e9); };
		j["done"] = true;
		j["done_reason"] = was_cut(e.result.reason) ? "length" : "stop";
		j["total_duration"] = std::chrono::nanoseconds(Clock::now() - began_).count();
		j["load_duration"] = 0;
		j["prompt_eval_count"] = e.reused + e.result.prompt_tokens;
		j["prompt_eval_duration"] = ns(e.result.prefill_seconds);
		j["eval_count"] = e.result.answer_tokens;
		j["eval_duration"] = ns(e.result.decode_seconds);
		j["kv"] = kv_json(e);
		out_->note(answer_note(e));
		if (!stream_) return out_->respond({200, dump(j)});
		line(j);
		out_->end();
	}
	void fail(const ApiError& e) override {
		if (std::exchange(failed_, true)) return;
		if (!begun_) return out_->respond(ollama_error(e));
		line({{"error", e.what()}});
		out_->end();
	}

 private:
	using Clock = std::chrono::steady_clock;

	void take(const kvrun_reply_part& p) { add(p.content, p.reasoning, json_or_null(p.calls)); }
	void add(std::string text, std::string thought, const Json& calls) {
		Json own = Json::array(); // with arguments as objects
		for (const Json& c : calls) {
			const Json arguments = json_or_null(c["function"]["arguments"].get<std::string>());
			own.push_back({{"id", ids_.of(n_calls_, c["id"].get<std::string>())},
			               {"function",
			                {{"index", n_calls_++},
			                 {"name", c["function"]["name"]},
			                 {"arguments", arguments.is_object() ? arguments : Json::object()}}}});
		}
		if (text.empty() && thought.empty() && own.empty()) return;
		if (stream_) return line(part(text, thought, own));
		text_ += text, thought_ += thought;
		calls_.insert(calls_.end(), own.begin(), own.end());
	}
	Json part(const std::string& text, const std::string& thought, const Json& calls) {
		Json j{{"model", model_}, {"created_at", ollama_time(unix_time())}};
		Json message{{"role", "assistant"}, {"content", text}};
		if (!thought.empty()) (chat_ ? message : j)["thinking"] = thought;
		if (!calls.empty()) message["tool_calls"] = calls;
		if (chat_)
			j["message"] = std::move(message);
		else
			j["response"] = text;
		if (!logprobs_.empty()) j["logprobs"] = std::exchange(logprobs_, Json::array());
		j["done"] = false;
		return j;
	}
	void line(const Json& j) { out_->send(dump(j) + "\n"); }

	const std::shared_ptr<Responder> out_;
	const std::string model_;
	const bool chat_, stream_, raw_;
	const Clock::time_point began_ = Clock::now();
	Reply reply_;
	CallIds ids_{"call_"};
	std::string text_, thought_; // of an answer that is sent whole
	Json calls_ = Json::array(), logprobs_ = Json::array();
	size_t n_calls_ = 0;
	bool begun_ = false, failed_ = false;
};

} // namespace

std::shared_ptr<Listener> ollama_answer(std::shared_ptr<Responder> out, const std::string& model, bool chat,
                                        bool stream, ReplyHandle reply) {
	return std::make_shared<OllamaAnswer>(std::move(out), model, chat, stream, std::move(reply));
}

Response ollama_loaded(const std::string& model, bool chat) {
	Json j{{"model", model}, {"created_at", ollama_time(unix_time())}};
	if (chat)
		j["message"] = {{"role", "assistant"}, {"content", ""}};
	else
		j["response"] = "";
	j["done"] = true, j["done_reason"] = "load";
	return {200, dump(j)};
}

} // namespace kvrun::serve
