// kvrun embed: vectors of texts, or texts ranked by how well they answer a query.
#include "engine/core/utf8.h"
#include "tools/api_device.h"
#include "tools/api_model.h"
#include "tools/args_llama.h"
#include "tools/args_says.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace kvrun {
namespace {

constexpr size_t kMostText = size_t(64) << 20; // bytes of a file or of standard input

struct EmbedArgs : ModelArgs {
	std::vector<std::string> texts;
	std::string file, query, pooling = "model";
	int64_t dimensions = 0, top = 0; // 0: all
	bool raw = false, json = false;
};

const std::vector<std::string> kPoolings = {"model", "mean", "first", "last"}; // by kvrun_pooling

std::vector<std::string> texts_of(const EmbedArgs& a) {
	std::vector<std::string> out = a.texts;
	if (a.file.empty() && !out.empty()) return out;
	const bool from_stdin = a.file.empty() || a.file == "-";
	const std::string all = from_stdin ? read_stdin(kMostText) : read_text_file(a.file, kMostText);
	for (size_t at = 0; at < all.size();) {
		const size_t end = std::min(all.find('\n', at), all.size());
		const size_t last = end > at && all[end - 1] == '\r' ? end - 1 : end;
		if (last > at) out.push_back(all.substr(at, last - at));
		at = end + 1;
	}
	if (out.empty())
		fail_status(KVRUN_EINVALID, "{} has no text; each line that is not empty is one",
		            from_stdin ? "standard input" : a.file);
	return out;
}

class Embedder {
 public:
	explicit Embedder(const EmbedArgs& a) : args_(a) {
		check_call(open_model(a, {}, "", 1, nullptr, /*show=*/true, engine_));
		info_ = engine_info(engine_.get());
		if (info_.device_is_cpu)
			say_stats(fmt::format("running on a CPU device: {}, driver {}", info_.device_name, info_.device_driver));
		if (args_.dimensions > info_.vector_dim)
			fail_status(KVRUN_EINVALID, "--dimensions is {}, the model's vectors have {}", args_.dimensions,
			            info_.vector_dim);
	}
	const kvrun_engine_info& info() const { return info_; }
	size_t dimensions() const { return args_.dimensions ? size_t(args_.dimensions) : info_.vector_dim; }

	// (texts, dimensions()), of length 1 unless --raw.
	std::vector<std::vector<float>> vectors(const std::vector<std::string>& texts) {
		std::vector<uint32_t> tokens;
		std::vector<size_t> counts;
		for (const std::string& t : texts) {
			const auto one = filled<std::vector<uint32_t>>(t.size() + 16, [&](uint32_t* to, size_t room, size_t* n) {
				return kvrun_tokenize(engine_.get(), t.data(), t.size(), KVRUN_TOKENS_END, to, room, n);
			});
			tokens.insert(tokens.end(), one.begin(), one.end());
			counts.push_back(one.size());
		}
		std::vector<float> all(texts.size() * info_.vector_dim);
		const auto pooling = kvrun_pooling(std::ranges::find(kPoolings, args_.pooling) - kPoolings.begin());
		run([&](const kvrun_generate_options& o) {
			return kvrun_embed_texts(engine_.get(), tokens.data(), counts.data(), counts.size(), pooling, &o,
			                         all.data());
		});
		n_tokens_ = tokens.size();
		std::vector<std::vector<float>> out;
		for (size_t i = 0; i < texts.size(); ++i) {
			const auto begin = all.begin() + ptrdiff_t(i * info_.vector_dim);
			out.emplace_back(begin, begin + ptrdiff_t(dimensions()));
			if (!args_.raw) scale_to_1(out.back());
		}
		return out;
	}
	std::vector<float> scores(const std::string& query, const std::vector<std::string>& texts) {
		std::vector<const char*> documents;
		for (const std::string& t : texts) documents.push_back(t.c_str());
		std::vector<float> out(texts.size());
		run([&](const kvrun_generate_options& o) {
			return kvrun_score_texts(engine_.get(), query.c_str(), documents.data(), documents.size(), &o, out.data(),
			                         &n_tokens_);
		});
		return out;
	}
	size_t n_tokens() const { return n_tokens_; } // of the latest call
	void say_speed(size_t n_texts) const {
		say_stats(fmt::format("{} text{}  {} tok in {:.2f} s ({:.1f} tok/s)", n_texts, n_texts == 1 ? "" : "s",
		                      n_tokens_, seconds_, per_second(double(n_tokens_), seconds_)));
	}

 private:
	static void scale_to_1(std::vector<float>& v) {
		double sum = 0;
		for (const float x : v) sum += double(x) * x;
		if (sum > 0)
			for (float& x : v) x = float(x / std::sqrt(sum));
	}
	static int show(double done, double seconds_left, void* bar) {
		static_cast<Progress*>(bar)->show("encoding", done, seconds_left);
		return Interrupt::requested();
	}
	template <class F> void run(F call) {
		Interrupt interrupt;
		Progress bar;
		kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
		o.on_prefill = show, o.payload = &bar;
		const auto start = std::chrono::steady_clock::now();
		const kvrun_status s = call(o);
		seconds_ = seconds_since(start);
		bar.clear();
		if (s == KVRUN_EUSER) throw Exit{kInterrupted};
		check_call(s);
	}
	const EmbedArgs& args_;
	EngineHandle engine_;
	kvrun_engine_info info_;
	size_t n_tokens_ = 0;
	double seconds_ = 0;
};

void print_vectors(const EmbedArgs& a, Embedder& model, const std::vector<std::string>& texts) {
	const std::vector<std::vector<float>> vectors = model.vectors(texts);
	if (a.json)
		return print_json({{"model", a.model},
		                   {"dimensions", model.dimensions()},
		                   {"tokens", model.n_tokens()},
		                   {"embeddings", vectors}});
	std::string out;
	for (const std::vector<float>& v : vectors) out += fmt::format("{}\n", fmt::join(v, " "));
	write_stdout(out);
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
	return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void print_ranked(const EmbedArgs& a, Embedder& model, const std::vector<std::string>& texts) {
	std::vector<double> scores;
	if (model.info().n_scores) {
		const std::vector<float> s = model.scores(a.query, texts);
		scores.assign(s.begin(), s.end());
	} else {
		std::vector<std::string> all = texts;
		all.push_back(a.query);
		const std::vector<std::vector<float>> v = model.vectors(all);
		for (size_t i = 0; i < texts.size(); ++i)
			scores.push_back(dot(v[i], v.back()) / std::sqrt(dot(v[i], v[i]) * dot(v.back(), v.back())));
	}
	std::vector<size_t> order(texts.size());
	std::iota(order.begin(), order.end(), size_t(0));
	std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return scores[i]; });
	if (a.top) order.resize(std::min(order.size(), size_t(a.top)));
	if (a.json) {
		Json results = Json::array();
		for (const size_t i : order) results.push_back({{"index", i}, {"score", scores[i]}, {"text", texts[i]}});
		return print_json({{"model", a.model}, {"tokens", model.n_tokens()}, {"results", std::move(results)}});
	}
	std::string out;
	for (const size_t i : order) out += fmt::format("{:.4f}\t{}\n", scores[i], texts[i]);
	write_stdout(stdout_is_terminal() ? visible(out, /*lines=*/true) : out);
}

void embed(const EmbedArgs& a) {
	const std::vector<std::string> texts = texts_of(a);
	Embedder model(a);
	if (a.query.empty() && a.top) warn_no_effect("--top", "texts are ranked only with --query");
	if (a.query.empty())
		print_vectors(a, model, texts);
	else
		print_ranked(a, model, texts);
	model.say_speed(texts.size());
}

} // namespace

void add_embed(Command& root) {
	auto a = std::make_shared<EmbedArgs>();
	Command& c = add_command(root, "embed", "Makes vectors of texts, or ranks texts by how well they answer a query.");
	c.examples = {{"kvrun embed model.gguf -p \"One text\" -p \"another\"", "two lines of numbers, of length 1"},
	              {"kvrun embed model.gguf -f lines.txt --query \"Who pays?\" -n 5",
	               "the five lines that answer best: by a reranker's scores, else by the cosine of vectors"}};
	add_model(c, a->model)->required();
	add_device(c, a->device);
	add_lora(c, a->loras);
	add_check(c, a->check);
	add_texts(c, "-p,--prompt", a->texts, "TEXT", "a text; can be given several times");
	add_text(c, "-f,--file", a->file, kFile,
	         "take each line of this file that is not empty as a text; -: of standard input, as without -p and -f");
	add_text(c, "--query", a->query, "TEXT", "print the texts with their scores for this query, the best first");
	add_integer(c, "-n,--top", a->top, 1, INT32_MAX, "most texts that --query prints [all]");
	add_choice(c, "--pooling", a->pooling, kPoolings,
	           "what becomes of the states of a text's tokens: their mean, or the state of the first or last token; "
	           "model: what the model's file says, else the mean [model]");
	add_integer(c, "--dimensions", a->dimensions, 1, INT32_MAX,
	            "keep so many channels of a vector, for models that are trained for it [all]");
	add_flag(c, "--raw", a->raw, "do not scale vectors to length 1");
	add_flag(c, "--json", a->json, "print JSON");
	add_says(c);
	add_llama_options(c);
	c.sections = {json_section({{"model, dimensions, tokens", "the file; channels of a vector; tokens of all texts"},
	                            {"embeddings", "a list of numbers for each text, in their order"},
	                            {"results", "with --query: index of the text, score, text"}})};
	c.run = [a] { embed(*a); };
}

} // namespace kvrun
