// Merges runs of several machines: devices side by side, compared with one of them.
#include "engine/core/utf8.h"
#include "tools/compare/compare.h"

namespace kvrun::comparison {

namespace {

// Appends the run's results of llama.cpp to those of the runs before it.
void add_peer_of(const Json& run, Json& all) {
	const auto peer = run.find("peer");
	if (peer == run.end()) return;
	if (!all.contains("peer")) {
		all["peer"] = *peer;
		return;
	}
	for (const Json& r : peer->value("results", Json::array())) all["peer"]["results"].push_back(r);
}

} // namespace

Json merge(const std::vector<std::string>& folders, const std::string& base) {
	Json all;
	std::string notes;
	for (const std::string& folder : folders) {
		const Json run = read_run(folder);
		if (all.is_null()) {
			all = run;
			all["devices"] = Json::array(), all["machines"] = Json::array(), all["static"] = Json::array();
			all.erase("machine"), all.erase("peer");
		}
		const auto text = [](const Json& j, const char* key) { return j.value(key, std::string()); };
		if (run["model"]["fingerprint"] != all["model"]["fingerprint"])
			fail(Code::Invalid, "{}: was measured with another model ({}, {}) than {} ({}, {}); measure the same file",
			     one_line(folder), text(run["model"], "name"), text(run["model"], "fingerprint"), one_line(folders[0]),
			     text(all["model"], "name"), text(all["model"], "fingerprint"));
		if (text(run, "version") != text(all, "version") || text(run, "commit") != text(all, "commit"))
			notes += fmt::format("{}: was measured with version {} ({}), {} with {} ({}). ", one_line(folder),
			                     text(run, "version"), text(run, "commit"), one_line(folders[0]), text(all, "version"),
			                     text(all, "commit"));
		if (run.contains("machine")) all["machines"].push_back(run["machine"]);
		for (const Json& m : run.value("machines", Json::array())) all["machines"].push_back(m); // itself merged
		add_peer_of(run, all);
		for (Json d : run["devices"]) {
			const std::string label = d["label"];
			for (const Json& other : all["devices"])
				if (other["label"] == d["label"])
					d["label"] = fmt::format("{} ({})", label,
					                         other["machine"] == d["machine"] ? one_line(folder) : text(d, "machine"));
			all["devices"].push_back(d);
		}
		for (const Json& s : run.value("static", Json::array())) all["static"].push_back(s);
	}
	if (!notes.empty()) all["version_note"] = notes;
	if (base.empty()) return all;
	for (const Json& d : all["devices"])
		if (d["label"] == base) {
			all["base"] = base;
			return all;
		}
	std::string names;
	for (const Json& d : all["devices"]) names += (names.empty() ? "" : ", ") + d["label"].get<std::string>();
	fail(Code::Invalid, "--base {}: is no device of these runs; there are {}", one_line(base), names);
}

} // namespace kvrun::comparison
