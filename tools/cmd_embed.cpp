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
constexpr size_t kSlice = 256;                 // texts whose vectors are written together

struct EmbedArgs : ModelArgs {
	std::vector<std::string> texts;
	std::string file, query, pooling = "model";
	int64_t dimensions = 0, top = 0; // 0: all
	bool raw = false, json = false, truncate = false;
};

const std::vector<std::string> kPoolings = {"model", "mean", "first", "last"}; // by kvrun_pooling

struct Texts {
	std::vector<std::string> all;
	std::vector<size_t> lines; // their numbers in the file, for the texts behind those of -p
	std::string file;          // or "standard input"
	std::string name(size_t i) const {
		if (i >= all.size()) return "the query";
		const size_t given = all.size() - lines.size();
		return i < given ? fmt::format("text {}", i + 1) : fmt::format("line {} of {}", lines[i - given], file);
	}
};

Texts texts_of(const EmbedArgs& a) {
	Texts out{a.texts, {}, a.file};
	if (a.file.empty() && !out.all.empty()) return out;
	const bool from_stdin = a.file.empty() || a.file == "-";
	if (from_stdin) out.file = "standard input";
	const std::string all = from_stdin ? read_stdin(kMostText) : read_text_file(a.file, kMostText);
	check_text(all, out.file);
	for (size_t at = 0, line = 1; at < all.size(); ++line) {
		const size_t end = std::min(all.find('\n', at), all.size());
		const size_t last = end > at && all[end - 1] == '\r' ? end - 1 : end;
		if (last > at) out.all.push_back(all.substr(at, last - at)), out.lines.push_back(line);
		at = end + 1;
	}
	if (out.all.empty()) fail_status(KVRUN_EINVALID, "{} has no text; each line that is not empty is one", out.file);
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

	// Vectors of the texts, and of `query` if it is not empty, of length 1 unless --raw. take: gets those of `slice`
	// texts at a time. All texts are looked at before the first is encoded.
	template <class F> void vectors(const Texts& texts, const std::string& query, size_t slice, F take) {
		std::vector<uint32_t> tokens;
		std::vector<size_t> counts;
		const auto add = [&](const std::string& text) {
			const std::vector<uint32_t> one = tokens_of(text, texts.name(counts.size()));
			tokens.insert(tokens.end(), one.begin(), one.end());
			counts.push_back(one.size());
		};
		for (const std::string& t : texts.all) add(t);
		if (!query.empty()) add(query);
		n_tokens_ = tokens.size();
		const auto pooling = kvrun_pooling(std::ranges::find(kPoolings, args_.pooling) - kPoolings.begin());
		const Interrupt interrupt; // also while vectors are written, of which none is cut
		size_t before = 0;         // tokens of the texts that are encoded
		for (size_t first = 0; first < counts.size(); first += slice) {
			const size_t n = std::min(slice, counts.size() - first);
			const size_t own = std::accumulate(&counts[first], &counts[first] + n, size_t(0));
			std::vector<float> all(n * info_.vector_dim);
			run(double(before), double(own), double(tokens.size()), [&](const kvrun_generate_options& o) {
				return kvrun_embed_texts(engine_.get(), &tokens[before], &counts[first], n, pooling, &o, all.data());
			});
			before += own;
			std::vector<std::vector<float>> out;
			for (size_t i = 0; i < n; ++i) {
				const auto begin = all.begin() + ptrdiff_t(i * info_.vector_dim);
				out.emplace_back(begin, begin + ptrdiff_t(dimensions()));
				if (!args_.raw) scale_to_1(out.back());
			}
			take(std::move(out));
		}
	}
	std::vector<std::vector<float>> vectors(const Texts& texts, const std::string& query) { // all at once
		std::vector<std::vector<float>> out;
		vectors(texts, query, SIZE_MAX, [&](std::vector<std::vector<float>> all) { out = std::move(all); });
		return out;
	}
	std::vector<float> scores(const std::string& query, const std::vector<std::string>& texts) {
		const std::vector<std::string> whole = args_.truncate ? shortened(query, texts) : texts;
		std::vector<const char*> documents;
		for (const std::string& t : whole) documents.push_back(t.c_str());
		std::vector<float> out(texts.size());
		const Interrupt interrupt;
		run(0, 1, 1, [&](const kvrun_generate_options& o) {
			return kvrun_score_texts(engine_.get(), query.c_str(), documents.data(), documents.size(), &o, out.data(),
			                         &n_tokens_);
		});
		return out;
	}
	size_t n_tokens() const { return n_tokens_; } // of all texts
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
	std::vector<uint32_t> tokenized(const std::string& text, uint32_t flags) const {
		return filled<std::vector<uint32_t>>(text.size() + 16, [&](uint32_t* to, size_t room, size_t* n) {
			return kvrun_tokenize(engine_.get(), text.data(), text.size(), flags, to, room, n);
		});
	}
	// name: what errors call it. With --truncate at most as many as the model takes, the last one that ends a text.
	std::vector<uint32_t> tokens_of(const std::string& text, const std::string& name) const {
		std::vector<uint32_t> out = tokenized(text, KVRUN_TOKENS_END);
		const size_t most = info_.ctx_train;
		if (out.empty()) fail_status(KVRUN_EINVALID, "{} has no tokens", name);
		if (out.size() <= most || (!info_.encodes && !args_.truncate)) return out;
		if (!args_.truncate)
			fail_status(KVRUN_ECONTEXT,
			            "{} has {} tokens, the model takes {}; shorten or divide it, or give --truncate", name,
			            out.size(), most);
		const std::vector<uint32_t> end = tokenized("", KVRUN_TOKENS_END | KVRUN_TOKENS_NO_BOS);
		out.resize(most - std::min(most, end.size()));
		out.insert(out.end(), end.begin(), end.end());
		return out;
	}
	// Texts that leave room for the query.
	std::vector<std::string> shortened(const std::string& query, const std::vector<std::string>& texts) const {
		constexpr size_t kFrame = 16; // tokens around a query and a text, at most
		const size_t room = info_.ctx_train, taken = tokenized(query, KVRUN_TOKENS_NO_BOS).size() + kFrame;
		const size_t most = room - std::min(room, taken);
		std::vector<std::string> out;
		for (const std::string& t : texts) {
			const std::vector<uint32_t> tokens = tokenized(t, KVRUN_TOKENS_NO_BOS);
			out.push_back(
			    tokens.size() <= most ? t : filled<std::string>(t.size() + 16, [&](char* to, size_t n, size_t* got) {
				    return kvrun_detokenize(engine_.get(), tokens.data(), most, 0, to, n, got);
			    }));
		}
		return out;
	}
	struct Shown { // the progress of a call among others: in tokens
		Progress bar;
		double before, own, all;
	};
	static int show(double done, double seconds_left, void* payload) {
		Shown& s = *static_cast<Shown*>(payload);
		const double now = s.before + done * s.own, own_left = (1 - done) * s.own;
		s.bar.show("encoding", now / s.all, own_left > 0 ? seconds_left * (s.all - now) / own_left : 0);
		return Interrupt::requested();
	}
	template <class F> void run(double before, double own, double all, F call) {
		Shown shown{{}, before, own, all};
		kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
		o.on_prefill = show, o.payload = &shown;
		const auto start = std::chrono::steady_clock::now();
		const kvrun_status s = call(o);
		seconds_ += seconds_since(start);
		shown.bar.clear();
		if (s == KVRUN_EUSER) throw Exit{kInterrupted};
		check_call(s);
	}
	const EmbedArgs& args_;
	EngineHandle engine_;
	kvrun_engine_info info_;
	size_t n_tokens_ = 0;
	double seconds_ = 0;
};

void print_vectors(const EmbedArgs& a, Embedder& model, const Texts& texts) {
	if (a.json) {
		const std::vector<std::vector<float>> vectors = model.vectors(texts, "");
		return print_json({{"model", a.model},
		                   {"dimensions", model.dimensions()},
		                   {"tokens", model.n_tokens()},
		                   {"embeddings", vectors}});
	}
	model.vectors(texts, "", kSlice, [](const std::vector<std::vector<float>>& some) {
		std::string out;
		for (const std::vector<float>& v : some) out += fmt::format("{}\n", fmt::join(v, " "));
		write_stdout(out);
	});
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
	return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void print_ranked(const EmbedArgs& a, Embedder& model, const Texts& given) {
	const std::vector<std::string>& texts = given.all;
	std::vector<double> scores;
	if (model.info().n_scores) {
		const std::vector<float> s = model.scores(a.query, texts);
		scores.assign(s.begin(), s.end());
	} else {
		const std::vector<std::vector<float>> v = model.vectors(given, a.query);
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
	const Texts texts = texts_of(a);
	Embedder model(a);
	if (a.query.empty() && a.top) warn_no_effect("--top", "texts are ranked only with --query");
	if (a.query.empty())
		print_vectors(a, model, texts);
	else
		print_ranked(a, model, texts);
	model.say_speed(texts.all.size());
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
	const Option* query =
	    add_text(c, "--query", a->query, "TEXT", "print the texts with their scores for this query, the best first");
	c.before_run.push_back([a, query] { // of a variable
		if (query->count && a->query.empty()) fail_status(KVRUN_EINVALID, "--query is empty, expected a text");
	});
	add_integer(c, "-n,--top", a->top, 1, INT32_MAX, "most texts that --query prints [all]");
	add_choice(c, "--pooling", a->pooling, kPoolings,
	           "what becomes of the states of a text's tokens: their mean, or the state of the first or last token; "
	           "model: what the model's file says, else the mean [model]");
	add_integer(c, "--dimensions", a->dimensions, 1, INT32_MAX,
	            "keep so many channels of a vector, for models that are trained for it [all]");
	add_flag(
	    c, "--truncate", a->truncate,
	    "cut off what the model does not take of a text; without it, a text that is too long is refused before any "
	    "is encoded");
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
