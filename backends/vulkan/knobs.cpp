// Choices between kernels and tile sizes: names, values, and where a device has them.
#include "backends/vulkan/knobs.h"
#include "backends/vulkan/kernel_choice.h"
#include "engine/core/log.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include <algorithm>

namespace kvrun::vk {
namespace {

struct KnobValue {
	const char* name;
	uint32_t value;
};
constexpr KnobValue kOn{"on", 1}, kOff{"off", 0};

struct KnobRow {
	Knob knob;
	const char *name, *what;
	std::vector<KnobValue> values;   // the first is kvrun's own
	bool (*has_choice)(const Caps&); // whether values differ on this device, with the rows before as they are
};

bool kernels_of_gpus(const Caps& c) { return !reads_texels(c); }

const std::vector<KnobRow>& knob_rows() {
	static const std::vector<KnobRow> rows = {
	    {Knob::Texels,
	     "texels",
	     "kernels for software drivers, which load through texel buffers",
	     {kOn, kOff},
	     [](const Caps& c) { return c.texel_range > 0; }},
	    {Knob::Matrices,
	     "matrices",
	     "matrix products of prompts use cooperative matrices",
	     {kOn, kOff},
	     [](const Caps& c) { return uses_matrices(c); }},
	    {Knob::AttendMatrices,
	     "attend_matrices",
	     "attention of prompts uses cooperative matrices",
	     {kOn, kOff},
	     [](const Caps& c) { return attends_by_matrices(c, 64); }},
	    {Knob::RegisterScores,
	     "register_scores",
	     "scores of prompts stay in registers instead of shared memory",
	     {kOff, kOn},
	     [](const Caps& c) { return chooses_register_scores(c); }},
	    {Knob::SharedQueries,
	     "shared_queries",
	     "queries of prompts stay in shared memory instead of registers",
	     {kOff, kOn},
	     [](const Caps& c) { return chooses_shared_queries(c); }},
	    {Knob::PromptQueries,
	     "prompt_queries",
	     "queries of a workgroup in attention of prompts by cooperative matrices",
	     {{"64", 64}, {"128", 128}},
	     [](const Caps& c) { return chooses_prompt_queries(c); }},
	    {Knob::ProjectInt8,
	     "project_int8",
	     "projections of decode steps use integer dot products; activations are rounded to 8 bits",
	     {kOn, kOff},
	     [](const Caps& c) { return projects_in_int8(c, DType::Q4_K); }},
	    {Knob::AttendInt8,
	     "attend_int8",
	     "attention over packed tokens uses integer dot products",
	     {kOn, kOff},
	     [](const Caps& c) { return attends_in_int8(c); }},
	    {Knob::MatvecRows,
	     "matvec_rows",
	     "weight rows per subgroup in decode steps",
	     {{"auto", 0}, {"1", 1}, {"2", 2}, {"4", 4}},
	     kernels_of_gpus},
	    {Knob::TileFill,
	     "tile_fill",
	     "least number of workgroups for which large prompt tiles are used",
	     {{"128", 128}, {"32", 32}, {"512", 512}},
	     kernels_of_gpus},
	    {Knob::TileBuffers,
	     "tile_buffers",
	     "prompt tiles in shared memory; with 2, one is written while the other is multiplied",
	     {{"1", 1}, {"2", 2}},
	     [](const Caps& c) { return buffers_matrices(c); }},
	    {Knob::Pieces,
	     "pieces",
	     "number of pieces of decode attention, in percent of kvrun's own",
	     {{"100", 100}, {"50", 50}, {"200", 200}, {"400", 400}},
	     [](const Caps& c) { return !c.is_cpu; }},
	};
	return rows;
}

const KnobValue* value_named(const KnobRow& row, std::string_view name) {
	const auto v = std::ranges::find(row.values, name, &KnobValue::name);
	return v == row.values.end() ? nullptr : &*v;
}

// How a row's attention is cut into pieces: a workgroup takes tiles of 4 tokens per lane.
void set_pieces(const Caps& c, DeviceInfo& info) {
	if (c.is_cpu) { // few cores do not gain from many short pieces
		info.piece_tokens = 1024, info.prompt_most_pieces = 1;
		return;
	}
	const uint32_t percent = c.knobs[Knob::Pieces];
	info.piece_tokens = 4 * attend_quads(c);
	info.most_pieces = DeviceInfo().most_pieces * percent / 100;
	// 16 subgroups of 32 lanes for each core
	if (c.cores) info.fill_workgroups = c.cores * (512 / attend_quads(c)) * percent / 100;
}

} // namespace

std::vector<Tunable> tunables(const Caps& c) {
	std::vector<Tunable> out;
	for (const KnobRow& row : knob_rows()) {
		Caps own = c;
		own.knobs[row.knob] = row.values[0].value;
		if (!row.has_choice(own)) continue;
		Tunable& t = out.emplace_back(Tunable{row.name, row.what, {}, ""});
		for (const KnobValue& v : row.values) {
			t.values.push_back(v.name);
			if (v.value == c.knobs[row.knob]) t.value = v.name;
		}
	}
	return out;
}

bool set_knob(Knobs& knobs, std::string_view name, std::string_view value) {
	for (const KnobRow& row : knob_rows()) {
		if (row.name != name) continue;
		const KnobValue* v = value_named(row, value);
		if (v) knobs[row.knob] = v->value;
		return v != nullptr;
	}
	return false;
}

void describe_choices(const Caps& c, DeviceInfo& info) {
	info.half_matmul = uses_matrices(c);
	info.int8_attend = attends_in_int8(c);
	info.int8_matmul = projects_in_int8(c, DType::Q4_K);
	info.merges_few = attend_merges(c);
	set_pieces(c, info);
}

bool Device::tune(std::string_view name, std::string_view value) {
	if (!set_knob(caps_.knobs, name, value)) return false;
	describe_choices(caps_, report_.info);
	return true;
}

DeviceTuning read_knobs(Caps& c, const std::string& folder, const std::string& id, const std::string& key,
                        const std::string& device) {
	std::string why;
	const std::filesystem::path path = device_tuning_path(sys::path_of(folder), id);
	DeviceTuning tuning = read_device_tuning(path, key, why);
	Knobs knobs = c.knobs;
	for (const auto& [name, value] : tuning.values)
		if (!set_knob(knobs, name, value)) why = fmt::format("damaged: it has {} {}", name, value);
	if (!why.empty()) {
		warn_once(fmt::format("{} is {}: ignored; `kvrun tune --kernels` measures {} again", path.string(), why,
		                      one_line(device)));
		return {};
	}
	c.knobs = knobs;
	return tuning;
}

} // namespace kvrun::vk
