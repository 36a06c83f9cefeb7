// Names on a model hub: repositories, names of their files, and which of them are safe as local paths.
#include "tools/hub/names.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>

namespace kvrun {
namespace {

constexpr size_t kLongestPart = 96, kLongestPath = 1024; // bytes

bool is_name(std::string_view s) {
	const auto good = [](char c) { return std::isalnum(uint8_t(c)) || c == '-' || c == '_' || c == '.'; };
	return !s.empty() && s.size() <= kLongestPart && std::ranges::all_of(s, good) && s.front() != '.' &&
	       s.front() != '-' && s.back() != '.' && s.find("..") == s.npos && s.find("--") == s.npos;
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string_view without_end(std::string_view path) { return is_gguf(path) ? path.substr(0, path.size() - 5) : path; }

// "Q4_K_M", "IQ2_XXS", "TQ1_0", "MXFP4_MOE", "NVFP4", "BF16", "F32"
bool is_quant(std::string_view word) {
	const std::string w = lower_case(word);
	if (w == "bf16" || w == "f16" || w == "f32" || w == "fp16" || w == "fp32" || w.starts_with("mxfp4") ||
	    w.starts_with("nvfp4"))
		return true;
	const size_t q = w.find('q');
	if (q == w.npos || q > 1 || (q == 1 && w[0] != 'i' && w[0] != 't')) return false;
	if (q + 1 >= w.size() || w[q + 1] < '1' || w[q + 1] > '8') return false;
	return q + 2 == w.size() || w[q + 2] == '_';
}

} // namespace

std::string lower_case(std::string_view s) {
	std::string out(s);
	for (char& c : out) c = char(std::tolower(uint8_t(c)));
	return out;
}

std::string bare_name(std::string_view s) {
	std::string out;
	for (const char c : s)
		if (std::isalnum(uint8_t(c)) || uint8_t(c) >= 0x80) out += char(std::tolower(uint8_t(c)));
	return out;
}

std::optional<RepoName> as_repo(std::string_view text) {
	for (const std::string_view front : {"https://", "huggingface.co/", "hf.co/"})
		if (text.starts_with(front)) text.remove_prefix(front.size());
	RepoName out;
	const size_t colon = text.find(':');
	if (colon != text.npos) {
		out.want = text.substr(colon + 1);
		if (!is_safe_path(out.want)) return {};
		text = text.substr(0, colon);
	}
	const size_t slash = text.find('/');
	if (slash == text.npos || !is_name(text.substr(0, slash)) || !is_name(text.substr(slash + 1))) return {};
	out.repo = text;
	return out;
}

// The address of a page of a repository, or of one of its files, as USER/REPO[:FILE].
static std::string without_address(std::string_view text) {
	text = text.substr(0, text.find('?'));
	for (const std::string_view kind : {"/blob/main/", "/resolve/main/"})
		if (const size_t at = text.find(kind); at != text.npos)
			return fmt::format("{}:{}", text.substr(0, at), text.substr(at + kind.size()));
	text = text.substr(0, text.find("/tree/main"));
	return std::string(text.ends_with('/') ? text.substr(0, text.size() - 1) : text);
}

RepoName parse_repo(std::string_view text) {
	if (auto r = as_repo(without_address(text))) return *r;
	fail(Code::Invalid, "'{}' is no USER/REPO[:QUANT], like unsloth/Qwen3-0.6B-GGUF:Q4_K_M", one_line(text));
}

bool is_safe_path(std::string_view path) {
	if (path.empty() || path.size() > kLongestPath) return false;
	for (size_t at = 0; at <= path.size();) {
		const size_t end = std::min(path.find('/', at), path.size());
		const std::string_view part = path.substr(at, end - at);
		if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
		at = end + 1;
	}
	for (size_t at = 0; at < path.size();) {
		const size_t n = utf8_char(path, at);
		const uint8_t c = uint8_t(path[at]);
		if (n == 0 || c < 0x20 || c == 0x7f || c == '\\' || c == ':') return false;
		if (n == 2 && c == 0xc2 && uint8_t(path[at + 1]) < 0xa0) return false; // U+0080..U+009F
		at += n;
	}
	return true;
}

bool is_gguf(std::string_view path) { return path.size() > 5 && lower_case(path.substr(path.size() - 5)) == ".gguf"; }

bool is_encoder(std::string_view path) {
	return is_gguf(path) && lower_case(file_name(path)).find("mmproj") != std::string::npos;
}

std::optional<SplitName> split_name(std::string_view path) {
	// -00002-of-00003
	constexpr size_t kTail = 15;
	const std::string_view name = without_end(path);
	if (name.size() == path.size() || name.size() <= kTail) return {};
	const std::string_view tail = name.substr(name.size() - kTail);
	if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return {};
	const auto number = [](std::string_view digits) {
		uint32_t v = 0;
		const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), v);
		return ec == std::errc() && end == digits.data() + digits.size() ? v : 0;
	};
	const uint32_t n = number(tail.substr(1, 5)), of = number(tail.substr(10, 5));
	if (!n || !of || n > of) return {};
	return SplitName{std::string(name.substr(0, name.size() - kTail)), n, of};
}

std::vector<std::string> part_names(const std::string& path) {
	const auto split = split_name(path);
	if (!split) return {path};
	const std::string ending = path.substr(path.size() - 5);
	std::vector<std::string> out;
	for (uint32_t i = 1; i <= split->count; ++i)
		out.push_back(fmt::format("{}-{:05}-of-{:05}{}", split->stem, i, split->count, ending));
	return out;
}

std::string quant_of(std::string_view path) {
	const auto split = split_name(path);
	std::string_view name = split ? std::string_view(split->stem) : without_end(path);
	name = file_name(name);
	for (size_t end = name.size(); end > 0;) {
		const size_t at = name.find_last_of("-.", end - 1);
		const size_t from = at == name.npos ? 0 : at + 1;
		const std::string_view word = name.substr(from, end - from);
		if (is_quant(word)) {
			std::string out(word);
			for (char& c : out) c = char(std::toupper(uint8_t(c)));
			return out;
		}
		if (at == name.npos) break;
		end = at;
	}
	return {};
}

uint64_t HubModel::bytes() const {
	uint64_t sum = 0;
	for (const HubFile& f : files) sum += f.bytes;
	return sum;
}

// The best of the encoders for a model at `path`; the nearest folder first.
static std::optional<HubFile> encoder_of(const std::vector<HubFile>& encoders, std::string_view path) {
	const auto folder = [](std::string_view p) { return p.substr(0, p.rfind('/') + 1); }; // npos + 1 is 0
	const auto rank = [&](const HubFile& f) {
		constexpr const char* kBestFirst[] = {"F16", "FP16", "BF16", "Q8_0", "F32", "FP32"};
		const size_t at = size_t(std::ranges::find(kBestFirst, quant_of(f.path)) - kBestFirst);
		return std::pair(path.size() - folder(f.path).size(), at);
	};
	const HubFile* best = nullptr;
	for (const HubFile& f : encoders)
		if (folder(path).starts_with(folder(f.path)) && (!best || rank(f) < rank(*best))) best = &f;
	return best ? std::optional(*best) : std::nullopt;
}

std::vector<HubModel> models_of(std::vector<HubFile> files) {
	std::map<std::string, HubModel> by_stem;
	std::vector<HubFile> encoders;
	std::ranges::sort(files, {}, &HubFile::path);
	for (HubFile& f : files) {
		if (is_encoder(f.path)) {
			encoders.push_back(std::move(f));
			continue;
		}
		if (!is_gguf(f.path) || lower_case(file_name(f.path)).find("imatrix") != std::string::npos) continue;
		const auto split = split_name(f.path);
		HubModel& m = by_stem[split ? split->stem : std::string(without_end(f.path))];
		m.quant = quant_of(f.path);
		m.files.push_back(std::move(f));
	}
	std::vector<HubModel> out;
	std::map<std::string, size_t> named;
	for (const auto& [stem, m] : by_stem) ++named[m.quant];
	for (auto& [stem, m] : by_stem) {
		if (m.quant.empty() || named[m.quant] > 1) m.quant = stem; // else two models would have the same name
		m.encoder = encoder_of(encoders, m.files.front().path);
		out.push_back(std::move(m));
	}
	std::ranges::stable_sort(out, {}, &HubModel::bytes);
	return out;
}

// The path without its extension and number of a part, in lower case.
static std::string stem_of(const std::string& path) {
	const auto split = split_name(path);
	return lower_case(split ? std::string_view(split->stem) : without_end(path));
}

std::optional<size_t> find_path(const std::vector<std::string>& paths, const std::string& want) {
	const std::string w = lower_case(want);
	std::vector<std::string> stems;
	for (const std::string& p : paths) stems.push_back(stem_of(p));
	for (size_t i = 0; i < paths.size(); ++i)
		if (lower_case(paths[i]) == w || lower_case(file_name(paths[i])) == w || stems[i] == w ||
		    file_name(stems[i]) == w)
			return i;
	const auto ends_so = [&w](std::string_view stem) {
		if (w.empty() || stem.size() <= w.size() || !stem.ends_with(w)) return false;
		const char before = stem[stem.size() - w.size() - 1];
		return before == '-' || before == '.' || before == '/';
	};
	std::optional<size_t> best;
	for (size_t i = 0; i < paths.size(); ++i)
		if (ends_so(stems[i]) && (!best || stems[i].size() < stems[*best].size())) best = i;
	if (!best) return {};
	// of NAME-Q4_K_M and NAME-UD-Q4_K_M the first is meant; of two names none is
	const std::string_view front = std::string_view(stems[*best]).substr(0, stems[*best].size() - w.size());
	const bool one =
	    std::ranges::all_of(stems, [&](const std::string& s) { return !ends_so(s) || s.starts_with(front); });
	return one ? best : std::nullopt;
}

const HubModel* find_model(const std::vector<HubModel>& models, const std::string& want) {
	const std::string w = lower_case(want);
	for (const HubModel& m : models)
		if (lower_case(m.quant) == w) return &m;
	for (const HubModel& m : models) // also a later part of a split model
		if (std::ranges::any_of(m.files, [&](const HubFile& f) { return lower_case(f.path) == w; })) return &m;
	std::vector<std::string> paths;
	for (const HubModel& m : models) paths.push_back(m.files.front().path);
	const auto found = find_path(paths, want);
	return found ? &models[*found] : nullptr;
}

} // namespace kvrun
