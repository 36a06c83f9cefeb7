// Chooses and fetches a model of the hub by its name.
#include "tools/hub/pull.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "models/draft_file.h"
#include "models/encoder_file.h"
#include "models/model.h"
#include "tools/args_engine.h"
#include "tools/hub/fetch.h"
#include "tools/hub/fit.h"
#include "tools/hub/local.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>
#include <fmt/ranges.h>
#include <fstream>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kHeader = uint64_t(16) << 20, kLongestHeader = uint64_t(64) << 20; // bytes fetched to look at a file

// An unnamed file of `total` bytes of which only the beginning is known; it is removed with this object.
class Beginning {
 public:
	Beginning(const fs::path& from, uint64_t known, uint64_t total) {
		fd_ = sys::create_unnamed(fs::temp_directory_path().string(), &name_);
		if (fd_ < 0) return;
		std::ifstream in(from, std::ios::binary);
		std::vector<char> piece(size_t(1) << 20);
		while (known > 0) {
			in.read(piece.data(), std::streamsize(std::min<uint64_t>(piece.size(), known)));
			const std::streamsize n = in.gcount();
			if (n <= 0 || !sys::write_file(fd_, std::as_bytes(std::span(piece.data(), size_t(n))))) return;
			known -= uint64_t(n);
		}
		good_ = sys::cut_file(fd_, total);
	}
	~Beginning() {
		if (fd_ >= 0) sys::close_file(fd_);
	}
	Beginning(const Beginning&) = delete;
	std::string path() const { return good_ ? name_ : ""; }

 private:
	std::string name_;
	int fd_ = -1;
	bool good_ = false;
};

struct Look { // what is known of a model before it is fetched
	std::optional<Config> config;
	uint64_t parameters = 0;
	std::string refused; // why kvrun cannot run it; empty: it can, or this is unknown
};

// An error text without the name of the temporary file.
std::string reason(const std::string& what, const std::string& file) {
	return what.starts_with(file + ": ") ? what.substr(file.size() + 2) : what;
}

// Why kvrun cannot run the encoder with the model; empty: it can, or this is unknown.
std::string encoder_refused(const RemoteRepo& r, const HubFile& f, const Config& model) {
	const uint64_t known = std::min(kHeader, f.bytes);
	const Beginning beginning(fetch_beginning(r, f, known), known, f.bytes);
	const std::string path = beginning.path();
	if (path.empty()) return "";
	try {
		read_encoders(Gguf::open(path), model);
		return "";
	} catch (const Error& e) { return reason(e.what(), path); }
}

Look look_at(const RemoteRepo& r, const HubModel& m) {
	const HubFile& f = m.files.front();
	Look look;
	if (m.files.size() > 1) return look; // all parts would be needed
	for (uint64_t bytes = kHeader; bytes <= kLongestHeader; bytes *= 4) {
		const uint64_t known = std::min(bytes, f.bytes);
		const Beginning beginning(fetch_beginning(r, f, known), known, f.bytes);
		const std::string path = beginning.path();
		if (path.empty()) return look;
		try {
			const Gguf g = Gguf::open(path);
			for (const GgufTensor& t : g.tensors()) look.parameters += t.rows() * t.cols();
			if (draft_kind(g) != DraftKind::None) return look; // which model it is for is known where both are opened
			look.config = read_config(g);
			check_model(g, *look.config, Tokenizer(g));
			return look;
		} catch (const Error& e) {
			if (e.code == Code::Unsupported) return look.refused = reason(e.what(), path), look;
			if (look.config && e.code == Code::Format) return look; // the fault concerns bytes that are not fetched yet
		}
		look = {};
		if (known == f.bytes) return look; // loading the file reports what is wrong
	}
	return look;
}

void say_chosen(const RemoteRepo& r, const std::string& why) {
	say_stats(fmt::format("{}: {}", r.repo, one_line(why)));
}

std::string quants_of(const std::vector<HubModel>& models) {
	std::vector<std::string> out;
	for (const HubModel& m : models)
		out.push_back(fmt::format("{} ({})", one_line(m.quant), human_bytes(double(m.bytes()))));
	return fmt::format("{}", fmt::join(out, ", "));
}

// The largest model that fits this device and that kvrun can run.
HubModel chosen_model(const RemoteRepo& r) {
	std::vector<HubModel> models = r.models;
	if (models.size() == 1) {
		if (const Look look = look_at(r, models.front()); !look.refused.empty())
			fail(Code::Unsupported, "kvrun cannot run {}: {}", r.repo, one_line(look.refused));
		return models.front();
	}
	DeviceInfo device;
	try {
		device = find_device(backend_options("", /*check=*/false)).info;
	} catch (const Error& e) {
		fail(Code::Device, "no device was found that the model could fit ({}); name one of {}", one_line(e.what()),
		     quants_of(models));
	}
	Look look;
	if (const HubModel* first = guess_model(models, device)) look = look_at(r, *first);
	std::string refused;
	while (!models.empty()) {
		const Fit fit = choose_model(models, device, look.config ? &*look.config : nullptr, look.parameters);
		if (!fit.model) fail(Code::Context, "{}; {}:QUANT fetches one nevertheless", one_line(fit.why), r.repo);
		const HubModel model = *fit.model;
		refused = look_at(r, model).refused;
		if (refused.empty()) {
			say_chosen(r, fit.why);
			if (r.models.size() > 1) say_stats(fmt::format("there are also {}", quants_of(r.models)));
			return model;
		}
		std::erase_if(models, [&](const HubModel& m) { return m.quant == model.quant; });
	}
	fail(Code::Unsupported, "kvrun runs none of the {} models of {}: {}", r.models.size(), r.repo, one_line(refused));
}

HubModel named_model(const RemoteRepo& r, const std::string& want, bool must_run) {
	const HubModel* m = find_model(r.models, want);
	if (!m) fail(Code::NotFound, "{} has no '{}'; it has {}", r.repo, one_line(want), quants_of(r.models));
	check_room(r, m->files);
	if (const Look look = look_at(r, *m); !look.refused.empty()) {
		if (must_run) fail(Code::Unsupported, "kvrun cannot run {}:{}: {}", r.repo, m->quant, one_line(look.refused));
		say_stats(fmt::format("warning: kvrun cannot run it: {}", one_line(look.refused)));
	}
	return *m;
}

} // namespace

ModelPath pull_model(const std::string& name, bool must_run, bool encoder) {
	const RepoName asked = parse_repo(name);
	RemoteRepo repo = read_repo(asked.repo);
	if (!encoder)
		for (HubModel& m : repo.models) m.encoder.reset();
	HubModel model = asked.want.empty() ? chosen_model(repo) : named_model(repo, asked.want, must_run);
	if (model.encoder)
		if (const Look look = look_at(repo, model); look.config)
			if (const std::string why = encoder_refused(repo, *model.encoder, *look.config); !why.empty()) {
				say_stats(fmt::format("without its encoder {}: {}", one_line(model.encoder->path), one_line(why)));
				model.encoder.reset();
			}
	std::vector<HubFile> files = model.files;
	if (model.encoder) files.push_back(*model.encoder);
	check_room(repo, files);
	uint64_t here = 0, bytes = 0;
	for (const HubFile& f : files) here += bytes_here(repo, f), bytes += f.bytes;
	if (here < bytes)
		say_stats(fmt::format("fetching {}:{}{}, {}{}", repo.repo, model.quant,
		                      model.encoder ? fmt::format(" and {}", one_line(model.encoder->path)) : "",
		                      human_bytes(double(bytes)),
		                      here ? fmt::format(", {} of them are here", human_bytes(double(here))) : ""));
	const std::string path = fetch_files(repo, files).string();
	return {path, model.encoder ? snapshot_path(repo, *model.encoder).string() : ""};
}

ModelPath model_of_hub(const std::string& name, bool encoder) {
	const RepoName asked = parse_repo(name);
	std::vector<LocalModel> found;
	const std::vector<LocalModel> all = local_models();
	for (const LocalModel& m : all) {
		if (lower_case(m.repo) != lower_case(asked.repo)) continue;
		const std::string quant = m.name.substr(m.name.find(':') + 1);
		const bool named = lower_case(quant) == lower_case(asked.want) ||
		                   sys::path_of(m.path).generic_string().ends_with("/" + asked.want);
		if (asked.want.empty() || named) found.push_back(m);
	}
	if (const auto m = local_of_repo(all, asked); found.empty() && m) found.push_back(*m);
	if (found.empty()) return pull_model(name, /*must_run=*/true, encoder);
	if (found.size() == 1) return {found.front().path, found.front().encoder};
	std::vector<std::string> names;
	for (const LocalModel& m : found) names.push_back(one_line(m.name));
	fail(Code::Invalid, "{} means {} models here: {}; give one of these names", one_line(name), found.size(),
	     fmt::join(names, ", "));
}

} // namespace kvrun
