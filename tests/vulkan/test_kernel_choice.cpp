// Kernels and constants chosen for devices with given limits; no device is needed.
#include "backends/vulkan/device.h"
#include "backends/vulkan/kernel_uses.h"
#include "backends/vulkan/spirv.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <algorithm>
#include <array>
#include <doctest/doctest.h>
#include <map>
#include <set>

using namespace kvrun;

TEST_CASE(
    "kernel choice: matrices of the shapes that devices have fill their tiles, for any number of tokens or for none") {
	struct Row {
		vk::MatrixShape shape;
		uint32_t subgroup;
		bool used;
	};
	for (const Row& row : {Row{{16, 16, 16}, 32, true}, Row{{16, 16, 16}, 64, true}, Row{{8, 16, 16}, 16, true},
	                       Row{{8, 8, 8}, 8, true}, Row{{16, 8, 16}, 32, true}, Row{{16, 16, 16}, 128, true},
	                       Row{{16, 16, 16}, 8, false}, Row{{32, 32, 8}, 32, false}, Row{{}, 32, false}}) {
		vk::Caps c;
		c.vendor = 0x10de;
		c.workgroup = 1024, c.shared_bytes = 48 << 10;
		c.subgroup = c.subgroup_min = c.subgroup_max = row.subgroup, c.subgroup_ops = true;
		c.matrix = row.shape;
		INFO(row.shape.m << "x" << row.shape.n << "x" << row.shape.k << " in " << row.subgroup);
		CHECK(vk::uses_matrices(c) == row.used);
		for (const uint32_t tokens : {1u, 16u, 17u, 100u, 4096u}) {
			const vk::MatmulChoice how = vk::choose_matmul(c, DType::Q4_K, 16384, 4096, tokens, MATMUL_STORE, false);
			CHECK((how.kernel == Kernel::matmul_matrix) == row.used);
			if (!row.used) continue;
			std::map<uint32_t, uint32_t> spec;
			for (const vk::SpecValue& s : how.spec) spec[s.id] = s.value;
			const uint32_t rows = spec[SPEC_LOCAL_X] / 2,
			               across = spec[SPEC_LOCAL_X] / row.subgroup / spec[SPEC_SUBGROUP_ROWS];
			CHECK(rows % (spec[SPEC_SUBGROUP_ROWS] * row.shape.m) == 0);
			CHECK(spec[SPEC_COLS] % (across * row.shape.n) == 0);
			CHECK(how.groups.x * rows == 16384);
			CHECK(how.groups.y * spec[SPEC_COLS] >= tokens);
		}
	}
}

TEST_CASE("kernel choice: heads of up to 512 channels take matrices, in the shared memory of GPUs") {
	struct Row {
		uint32_t vendor;
		vk::MatrixShape shape;
		uint32_t subgroup, shared, head_dim;
		uint32_t groups, local, rows; // subgroups that share queries, lanes, rows of 4 heads; 0: no matrices
	};
	for (const Row& row : {Row{0x10de, {16, 16, 16}, 32, 48u << 10, 512, 4, 512, 16},
	                       Row{0x10de, {16, 16, 16}, 32, 48u << 10, 384, 4, 512, 16},
	                       Row{0x10de, {16, 16, 16}, 32, 32u << 10, 512, 0, 0, 0},
	                       Row{0x1002, {16, 16, 16}, 32, 64u << 10, 512, 4, 512, 16},
	                       Row{0x1002, {16, 16, 16}, 64, 64u << 10, 512, 4, 1024, 16},
	                       Row{0x8086, {8, 16, 16}, 16, 48u << 10, 256, 4, 512, 16},
	                       Row{0x8086, {8, 16, 16}, 16, 48u << 10, 512, 8, 512, 8},
	                       Row{0x8086, {8, 16, 16}, 16, 44u << 10, 512, 0, 0, 0},
	                       Row{0x10005, {8, 8, 8}, 8, 48u << 10, 512, 8, 512, 16}}) { // lavapipe
		vk::Caps c;
		c.vendor = row.vendor, c.workgroup = 1024, c.shared_bytes = row.shared;
		c.subgroup = c.subgroup_min = c.subgroup_max = row.subgroup, c.subgroup_ops = true;
		c.matrix = row.shape;
		INFO(row.vendor << ", " << row.head_dim << " channels, subgroups of " << row.subgroup);
		CHECK(vk::attends_by_matrices(c, row.head_dim) == (row.groups > 0));
		if (!row.groups) continue;
		CHECK_FALSE(vk::scores_by_matrices(c, row.head_dim));
		CHECK_FALSE(vk::attends_by_matrices(c, 520));
		for (const bool own : {false, true}) {
			const vk::AttendChoice how = own ? vk::choose_attend_prompt(c, 4, row.head_dim, 0)
			                                 : vk::choose_attend(c, 4, {}, row.head_dim, 32, /*prompt=*/true);
			CHECK(how.tokens == row.rows);
			std::vector<vk::SpecValue> spec = how.spec;
			CHECK(std::ranges::count(spec, vk::SpecValue{SPEC_SUBGROUP_COLS, row.groups}) == 1);
			spec.push_back({SPEC_SUBGROUP, row.subgroup});
			const KernelBlob& blob = kernel_blobs()[size_t(how.kernel)];
			const vk::Footprint f = vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), spec);
			CHECK(f.local[0] == row.local);
			CHECK(f.shared_bytes <= row.shared);
			vk::Caps least = c;
			least.shared_bytes = f.shared_bytes;
			CHECK(vk::choose_attend_prompt(least, 4, row.head_dim, 0).tokens == row.rows);
			--least.shared_bytes;
			CHECK(vk::choose_attend_prompt(least, 4, row.head_dim, 0).spec !=
			      vk::choose_attend_prompt(c, 4, row.head_dim, 0).spec);
		}
	}
}

TEST_CASE("kernel choice: attention by matrices, where rows of a subgroup are whole matrices and have whole lanes") {
	struct Row {
		vk::MatrixShape shape;
		uint32_t subgroup, shared;
		uint32_t local; // lanes of a workgroup; 0: not used
	};
	for (const Row& row :
	     {Row{{16, 16, 16}, 32, 48u << 10, 256}, Row{{16, 16, 16}, 64, 48u << 10, 512},
	      Row{{8, 16, 16}, 16, 64u << 10, 256}, Row{{8, 8, 8}, 8, 32u << 10, 128}, Row{{16, 8, 16}, 32, 48u << 10, 256},
	      Row{{16, 16, 16}, 128, 48u << 10, 1024}, Row{{16, 16, 16}, 32, 20u << 10, 0}, Row{{}, 32, 48u << 10, 0}}) {
		vk::Caps c;
		c.vendor = 0x10de;
		c.workgroup = 1024, c.shared_bytes = row.shared;
		c.subgroup = c.subgroup_min = c.subgroup_max = row.subgroup, c.subgroup_ops = true;
		c.matrix = row.shape;
		INFO(row.shape.m << "x" << row.shape.n << "x" << row.shape.k << " in " << row.subgroup);
		CHECK(vk::attends_by_matrices(c, 128) == (row.local > 0));
		CHECK(vk::attends_by_matrices(c, 256) == (row.local > 0)); // queries in parts
		CHECK_FALSE(vk::attends_by_matrices(c, 264));
		CHECK(vk::attends_by_matrices(c, 80) == (row.local > 0));
		CHECK_FALSE(vk::attends_by_matrices(c, row.shape.k == 8 ? 12 : 88)); // not a multiple of the matrices
		if (!row.local) continue;
		for (const uint32_t share : {1u, 3u, 8u, 64u, 71u})
			for (const bool own : {false, true}) {
				const vk::AttendChoice how = own ? vk::choose_attend_prompt(c, share, 128, 0)
				                                 : vk::choose_attend(c, share, {}, 128, 32, /*prompt=*/true);
				CHECK(how.kernel == (own ? Kernel::attend_prompt_matrix : Kernel::attend_matrix));
				CHECK(how.heads * how.tokens <= 64);
				CHECK(how.heads * how.blocks >= share);
				std::vector<vk::SpecValue> spec = how.spec;
				spec.push_back({SPEC_SUBGROUP, row.subgroup});
				const KernelBlob& blob = kernel_blobs()[size_t(how.kernel)];
				const vk::Footprint f = vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), spec);
				CHECK(f.local[0] == row.local);
				CHECK(f.shared_bytes == 28416);
			}
		for (const uint32_t d : {192u, 256u}) { // shared memory is what attends_by_matrices() reckons with
			const vk::AttendChoice how = vk::choose_attend_prompt(c, 4, d, 0);
			std::vector<vk::SpecValue> spec = how.spec;
			spec.push_back({SPEC_SUBGROUP, row.subgroup});
			const KernelBlob& blob = kernel_blobs()[size_t(how.kernel)];
			const uint32_t shared = vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), spec).shared_bytes;
			CHECK(shared <= c.shared_bytes);
			vk::Caps least = c;
			least.shared_bytes = shared;
			CHECK(vk::attends_by_matrices(least, d));
			least.shared_bytes = shared - 1;
			CHECK(vk::choose_attend_prompt(least, 4, d, 0).spec != how.spec);
		}
		const vk::ScoreChoice score = vk::choose_score_prompt(c, 128, 4, 8);
		CHECK(score.kernel == Kernel::score_prompt_matrix);
		std::vector<vk::SpecValue> spec = score.spec;
		const KernelBlob& blob = kernel_blobs()[size_t(score.kernel)];
		const vk::Footprint f = vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), spec);
		CHECK(f.local[0] / row.subgroup * row.shape.m == score.tokens);
		CHECK(f.local[0] <= 256);
		CHECK(f.shared_bytes <= 16384);
		CHECK(vk::choose_score_prompt(c, 88, 4, 8).kernel ==
		      (row.shape.k == 8 ? Kernel::score_prompt_matrix : Kernel::score_prompt));
		CHECK(vk::choose_score_prompt(c, 128, 4, 8, {false, KeyLength::Large}).kernel ==
		      Kernel::score_prompt); // no matrix products
		vk::Caps tight = c;
		tight.shared_bytes = 28415;
		CHECK(vk::attends_by_matrices(tight, 128)); // a tile of half as many tokens
		CHECK(vk::attends_by_matrices(tight, 96));
		const vk::AttendChoice decode = vk::choose_attend(c, 4, {}, 128, 32, /*prompt=*/false);
		CHECK(decode.kernel == Kernel::attend);
		vk::Caps intel = c; // registers suffice for 64 channels since Xe2, whose subgroups have at least 16 lanes
		intel.vendor = 0x8086;
		CHECK(vk::attends_by_matrices(intel, 64) == (row.subgroup >= 16));
		CHECK_FALSE(vk::attends_by_matrices(intel, 136));
		vk::Caps kept = c; // queries in shared memory, as wider heads have them there
		kept.shared_bytes = 64 << 10;
		const auto keeps = [](const vk::Caps& caps, uint32_t head_dim) {
			const auto spec = vk::choose_attend_prompt(caps, 4, head_dim, 0).spec;
			return std::ranges::count(spec, SPEC_KEPT, &vk::SpecValue::id) == 1;
		};
		CHECK_FALSE(keeps(kept, 128));
		CHECK(vk::set_knob(kept.knobs, "shared_queries", "on"));
		CHECK(keeps(kept, 128));
		CHECK(keeps(kept, 256));
		spec = vk::choose_attend_prompt(kept, 4, 128, 0).spec;
		spec.push_back({SPEC_SUBGROUP, row.subgroup});
		const KernelBlob& attend = kernel_blobs()[size_t(Kernel::attend_prompt_matrix)];
		kept.shared_bytes = vk::footprint(attend.spirv, vk::reflect(attend.spirv, attend.name), spec).shared_bytes;
		CHECK(keeps(kept, 128));
		intel.shared_bytes = kept.shared_bytes;
		CHECK(vk::attends_by_matrices(intel, 128) == (row.subgroup >= 16));
		--kept.shared_bytes, --intel.shared_bytes;
		CHECK(keeps(kept, 128));
		CHECK(vk::attends_by_matrices(intel, 128) == (row.subgroup >= 16));
		vk::Caps amd = c; // more subgroups share queries of wide heads, each with half of their channels
		amd.vendor = 0x1002, amd.shared_bytes = 64 << 10;
		const auto groups_of = [](const vk::Caps& caps, uint32_t head_dim) {
			for (const vk::SpecValue& v : vk::choose_attend_prompt(caps, 4, head_dim, 0).spec)
				if (v.id == SPEC_SUBGROUP_COLS) return v.value;
			return 0u;
		};
		CHECK(groups_of(amd, 128) == 2);
		CHECK(groups_of(c, 256) == 2);
		if (2 * row.local > c.workgroup) continue;
		CHECK(groups_of(amd, 256) == 64 / row.shape.n); // two for each matrix of keys
		for (const uint32_t d : {192u, 256u}) {
			const vk::AttendChoice four = vk::choose_attend_prompt(amd, 4, d, 0);
			std::vector<vk::SpecValue> of_four = four.spec;
			of_four.push_back({SPEC_SUBGROUP, row.subgroup});
			const vk::Footprint size = vk::footprint(attend.spirv, vk::reflect(attend.spirv, attend.name), of_four);
			CHECK(size.local[0] == row.local * groups_of(amd, d) / 2);
			vk::Caps least = amd;
			least.shared_bytes = size.shared_bytes;
			CHECK(vk::choose_attend_prompt(least, 4, d, 0).spec == four.spec);
			--least.shared_bytes;
			CHECK(vk::choose_attend_prompt(least, 4, d, 0).spec != four.spec);
		}
		vk::Caps twice = c; // twice as many queries for a workgroup of the same size
		twice.shared_bytes = 48 << 10;
		CHECK(vk::set_knob(twice.knobs, "prompt_queries", "128"));
		const vk::AttendChoice more = vk::choose_attend_prompt(twice, 4, 128, 0);
		CHECK(more.tokens == 32);
		CHECK(vk::choose_attend_prompt(twice, 4, 192, 0).tokens == 16); // registers do not hold the sums
		spec = more.spec;
		spec.push_back({SPEC_SUBGROUP, row.subgroup});
		const vk::Footprint wide = vk::footprint(attend.spirv, vk::reflect(attend.spirv, attend.name), spec);
		CHECK(wide.local[0] == row.local);
		twice.shared_bytes = wide.shared_bytes;
		CHECK(vk::choose_attend_prompt(twice, 4, 128, 0).tokens == 32);
		--twice.shared_bytes;
		CHECK(vk::choose_attend_prompt(twice, 4, 128, 0).tokens == 16);
		vk::Caps rows = c; // scores in registers, where matrices can be reduced and are as wide as deep
		rows.shared_bytes = 48 << 10;
		CHECK(vk::set_knob(rows.knobs, "register_scores", "on"));
		CHECK(vk::choose_attend_prompt(rows, 4, 128, 0).kernel == Kernel::attend_prompt_matrix);
		rows.matrix_rows = true;
		const bool square = row.shape.n == row.shape.k;
		CHECK(vk::chooses_register_scores(rows) == square);
		const Kernel reducing = square ? Kernel::attend_prompt_matrix_rows : Kernel::attend_prompt_matrix;
		for (const char* queries : {"64", "128"}) {
			if (!square) break;
			CHECK(vk::set_knob(rows.knobs, "prompt_queries", queries));
			for (const uint32_t d : {64u, 128u}) {
				vk::Caps least = rows;
				const vk::AttendChoice alone = vk::choose_attend_prompt(rows, 4, d, 0);
				CHECK(alone.kernel == reducing);
				spec = alone.spec;
				spec.push_back({SPEC_SUBGROUP, row.subgroup});
				const KernelBlob& b = kernel_blobs()[size_t(reducing)];
				const vk::Footprint size = vk::footprint(b.spirv, vk::reflect(b.spirv, b.name), spec);
				CHECK(size.local[0] == alone.tokens * 4 / std::max(row.shape.m, 8u) * row.subgroup);
				least.shared_bytes = size.shared_bytes;
				if (!vk::uses_matrices(least)) continue; // products need more
				CHECK(vk::choose_attend_prompt(least, 4, d, 0).spec == alone.spec);
				--least.shared_bytes;
				CHECK(vk::choose_attend_prompt(least, 4, d, 0).spec != alone.spec);
			}
		}
		CHECK(vk::choose_attend_prompt(rows, 4, 192, 0).kernel == Kernel::attend_prompt_matrix);
		CHECK(vk::choose_attend(rows, 4, {}, 128, 32, /*prompt=*/true).kernel ==
		      (square ? Kernel::attend_matrix_rows : Kernel::attend_matrix));
		c.attend_matrices = false;
		CHECK(vk::choose_attend_prompt(c, 4, 128, 0).kernel == Kernel::attend_prompt);
	}
}

TEST_CASE(
    "kernel choice: attention by integer dot products fits the device's shared memory, as does what it is chosen for") {
	for (const uint32_t vendor : {0x10deu, 0x1002u, 0x8086u})
		for (const uint32_t shared : {16u << 10, 32u << 10})
			for (const uint32_t subgroup : {4u, 64u}) {
				vk::Caps c;
				c.vendor = vendor;
				c.workgroup = 256, c.shared_bytes = shared;
				c.subgroup = c.subgroup_min = c.subgroup_max = subgroup;
				c.subgroup_ops = c.int_dot = true;
				bool int8 = false;
				for (const vk::KernelUse& u : vk::kernel_uses(c)) {
					if (u.kernel != Kernel::attend && u.kernel != Kernel::attend_int8) continue;
					const KernelBlob& blob = kernel_blobs()[size_t(u.kernel)];
					INFO(blob.name << ", " << u.what << ", vendor " << vendor << ", shared memory " << shared
					               << ", subgroups of " << subgroup);
					std::vector<vk::SpecValue> spec = u.spec;
					spec.push_back({SPEC_SUBGROUP, subgroup});
					CHECK(vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), spec).shared_bytes <= shared);
					int8 |= u.kernel == Kernel::attend_int8;
				}
				CHECK(int8);
				const Quant k2{.bits = 2, .scale = Scale::PerChannel}, v2{.bits = 2}, wide{.bits = 8};
				CHECK(vk::choose_attend(c, 4, {k2, v2}, 128, 32, false).kernel == Kernel::attend_int8);
				CHECK(vk::choose_attend(c, 4, {wide, v2}, 128, 32, false).kernel == Kernel::attend_int8);
				CHECK(vk::choose_attend(c, 4, {wide, wide}, 128, 32, false).kernel == Kernel::attend);
				CHECK(vk::choose_attend(c, 4, {}, 128, 32, false).kernel == Kernel::attend);
				c.int_dot = false;
				CHECK(vk::choose_attend(c, 4, {k2, v2}, 128, 32, false).kernel == Kernel::attend);
			}
}

TEST_CASE(
    "kernel choice: on AMD and NVIDIA two lanes share 4 tokens where queries halve, and tiles keep their tokens") {
	const Quant k2{.bits = 2, .scale = Scale::PerChannel}, v2{.bits = 2};
	struct Row {
		uint32_t vendor, subgroup, share, head_dim;
		Format format;
		bool prompt;
		uint32_t local, quad_lanes;
	};
	for (const Row& row : {Row{0x1002, 32, 4, 128, {}, false, 128, 2}, Row{0x1002, 32, 8, 256, {k2, v2}, false, 128, 2},
	                       Row{0x1002, 64, 2, 64, {}, false, 128, 2}, Row{0x1002, 32, 4, 64, {k2, v2}, false, 64, 1},
	                       Row{0x1002, 32, 1, 128, {}, false, 64, 1}, Row{0x1002, 32, 3, 128, {}, false, 64, 1},
	                       Row{0x1002, 32, 4, 128, {}, true, 64, 1}, Row{0x1002, 4, 4, 128, {}, false, 64, 1},
	                       Row{0x10de, 32, 8, 128, {}, false, 128, 2}, Row{0x8086, 16, 4, 128, {}, false, 32, 1}}) {
		vk::Caps c;
		c.vendor = row.vendor;
		c.workgroup = 1024, c.shared_bytes = 64 << 10;
		c.subgroup = c.subgroup_min = c.subgroup_max = row.subgroup;
		c.subgroup_ops = c.int_dot = true;
		const vk::AttendChoice how = vk::choose_attend(c, row.share, row.format, row.head_dim, 32, row.prompt);
		std::map<uint32_t, uint32_t> spec = {{SPEC_QUAD_LANES, 1}};
		for (const vk::SpecValue& s : how.spec) spec[s.id] = s.value;
		INFO("vendor " << row.vendor << ", " << row.share << " heads of " << row.head_dim);
		CHECK(spec[SPEC_LOCAL_X] == row.local);
		CHECK(spec[SPEC_QUAD_LANES] == row.quad_lanes);
		CHECK((row.quad_lanes == 1 || how.heads % 2 == 0));
	}
}

TEST_CASE("kernel choice: projections by integer dot products cover all rows, with one subgroup size and within shared "
          "memory") {
	struct Row {
		uint32_t vendor, subgroup, least, lanes; // lanes: of matvec_int8
		uint32_t cores = 0;
	};
	for (const Row& row : {Row{0x8086, 16, 8, 8}, Row{0x8086, 16, 16, 16}, Row{0x1002, 64, 32, 64},
	                       Row{0x10de, 32, 32, 32}, Row{0x10de, 32, 32, 32, 132}, Row{0x13b5, 4, 4, 4}}) {
		vk::Caps c;
		c.vendor = row.vendor;
		c.workgroup = row.cores ? 1024 : 256, c.shared_bytes = 32 << 10, c.cores = row.cores;
		c.subgroup = c.subgroup_max = row.subgroup, c.subgroup_min = row.least;
		c.subgroup_ops = c.subgroup_pin = c.int_dot = true;
		INFO("vendor " << row.vendor << ", subgroups of " << row.subgroup);
		CHECK_FALSE(vk::projects_in_int8(c, DType::F16));
		CHECK(vk::choose_matmul(c, DType::F16, 64, 64, 1, MATMUL_STORE, true).kernel == Kernel::matvec);
		CHECK(vk::choose_matmul(c, DType::F16, 64, 64, 9, MATMUL_STORE, false).kernel == Kernel::matmul);
		CHECK(vk::choose_matmul(c, DType::Q8_0, 64, 64, 9, MATMUL_STORE, false).kernel == Kernel::matmul_int8);
		REQUIRE(vk::projects_in_int8(c, DType::Q4_K));
		const KernelBlob& blob = kernel_blobs()[size_t(Kernel::matvec_int8)];
		for (const uint32_t rows : {1u, 64u, 4096u, 6145u, 28672u, 128256u})
			for (const uint32_t tokens : {1u, 2u, 3u, 8u, 16u})
				for (const uint32_t epilogue : {MATMUL_STORE, MATMUL_SWIGLU}) {
					const vk::MatmulChoice how =
					    vk::choose_matmul(c, DType::Q4_K, rows, 4096, tokens, epilogue, true, true);
					CHECK(how.kernel == Kernel::matvec_int8);
					std::map<uint32_t, uint32_t> spec;
					for (const vk::SpecValue& s : how.spec) spec[s.id] = s.value;
					CHECK(spec[SPEC_SUBGROUP] == row.lanes);
					const uint32_t taken = spec[SPEC_LOCAL_X] / row.lanes * spec[SPEC_ROWS];
					const bool resident = spec[SPEC_FLAGS] & MATMUL_RESIDENT,
					           rounded = spec[SPEC_FLAGS] & MATMUL_ROUNDED;
					CHECK(resident == (c.cores > 0 && tokens == 1));
					CHECK(rounded == (tokens > (c.vendor == 0x10de ? 1 : 4)));
					CHECK((resident ? how.groups.x <= 2 * c.cores : how.groups.x * taken >= rows));
					CHECK((how.groups.x - 1) * taken < rows);
					const vk::Footprint f = vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), how.spec);
					CHECK(f.shared_bytes <= c.shared_bytes);
				}
		c.workgroup = 128;
		CHECK_FALSE(vk::projects_in_int8(c, DType::Q4_K));
		c.workgroup = 256, c.int_dot = false;
		CHECK_FALSE(vk::projects_in_int8(c, DType::Q4_K));
		CHECK(vk::choose_matmul(c, DType::Q8_0, 64, 64, 9, MATMUL_STORE, false).kernel == Kernel::matmul);
	}
}

TEST_CASE("kernel choice: projections of decode steps have no more workgroups than the device allows") {
	const auto check = [](const vk::Caps& c, uint32_t rows, uint32_t tokens, DType type) {
		INFO("vendor " << c.vendor << ", subgroups of " << c.subgroup << ", rows " << rows << ", " << tokens
		               << " tokens, " << dtype_info(type).name);
		const vk::MatmulChoice how = vk::choose_matmul(c, type, rows, 2560, tokens, MATMUL_STORE, true);
		std::map<uint32_t, uint32_t> spec;
		for (const vk::SpecValue& s : how.spec) spec[s.id] = s.value;
		CHECK(how.groups.x <= c.groups[0]);
		CHECK(how.groups.x * spec[SPEC_LOCAL_X] / spec[SPEC_SUBGROUP] * spec[SPEC_ROWS] >= rows);
		if (c.groups[0] > 65535 && tokens == 1) CHECK(spec[SPEC_ROWS] == 1); // as set
	};
	for (const uint32_t subgroup : {16u, 32u, 64u, 128u})
		for (const uint32_t vendor : {0x1002u, 0x10deu, 0x5143u})
			for (const bool int_dot : {false, true})
				for (const uint32_t groups : {65535u, 1u << 20}) {
					vk::Caps c;
					c.vendor = vendor, c.workgroup = 1024, c.shared_bytes = 32 << 10, c.groups[0] = groups;
					c.subgroup = c.subgroup_min = c.subgroup_max = subgroup;
					c.subgroup_ops = c.subgroup_pin = true, c.int_dot = int_dot;
					for (const DType type : {DType::Q4_K, DType::F16, DType::F32}) {
						if (groups == 65535)
							for (uint32_t tokens = 1; tokens <= 16; ++tokens) check(c, 262144, tokens, type);
						vk::Caps one = c;
						REQUIRE(vk::set_knob(one.knobs, "matvec_rows", "1"));
						check(one, 262144, 1, type);
					}
				}
}

TEST_CASE(
    "kernel choice: states of attention are merged in the same dispatch where memory is ordered between workgroups") {
	vk::Caps c;
	for (const uint32_t vendor : {0x1002u, 0x10deu, 0x5143u, 0x8086u}) {
		c.vendor = vendor;
		CHECK(vk::attend_merges(c));
	}
	c.vendor = 0x106b; // Apple's, by Metal
	CHECK_FALSE(vk::attend_merges(c));
}

// GPUs of Arm boards as Mesa's drivers describe them (tools/arm.md): subgroups of 8 to 128 lanes.
TEST_CASE("kernel choice: T65 kernels fit the limits of chips on Arm boards, or their device is refused") {
	struct Chip {
		const char* name;
		uint32_t vendor, workgroup, shared, push, ssbo, subgroup;
		bool subgroup_ops, int_dot, refused;
	};
	for (const Chip& chip :
	     {Chip{"V3D 4.2, Raspberry Pi 4", 0x14e4, 256, 16384, 128, 8, 16, false, false, true},
	      Chip{"V3D 7.1, Raspberry Pi 5", 0x14e4, 256, 16384, 128, 8, 16, true, true, true},
	      Chip{"Mali v7, and lanes that are no power of two", 0x13b5, 384, 32768, 128, 64, 8, true, false, false},
	      Chip{"Mali v10, as G610", 0x13b5, 1024, 32768, 256, 64, 16, true, true, false},
	      Chip{"Adreno 6xx and 7xx", 0x5143, 1024, 32768, 128, 64, 128, true, false, false},
	      Chip{"Adreno, where 128 lanes spill", 0x5143, 1024, 32768, 128, 64, 64, true, false, false}}) {
		INFO(chip.name);
		vk::Caps c;
		c.vendor = chip.vendor;
		c.workgroup = c.workgroup_size[0] = c.workgroup_size[1] = c.workgroup_size[2] = chip.workgroup;
		for (uint32_t& g : c.groups) g = 65535;
		c.shared_bytes = chip.shared, c.push_bytes = chip.push, c.ssbo = chip.ssbo;
		c.range = 128u << 20, c.align = 64;
		c.subgroup = c.subgroup_min = c.subgroup_max = chip.subgroup;
		c.subgroup_ops = chip.subgroup_ops, c.int_dot = chip.int_dot;
		CHECK((chip.ssbo < vk::ssbo_needed()) == chip.refused);
		for (const vk::KernelUse& u : vk::kernel_uses(c)) {
			const KernelBlob& blob = kernel_blobs()[size_t(u.kernel)];
			INFO(blob.name << ", " << u.what);
			const std::span<const uint32_t> spirv = c.subgroup_ops ? blob.spirv : blob.no_subgroup;
			const vk::Reflection r = vk::reflect(spirv, blob.name);
			std::vector<vk::SpecValue> spec = u.spec;
			const auto given = std::ranges::find(spec, uint32_t(SPEC_SUBGROUP), &vk::SpecValue::id);
			const bool shares_rows = given != spec.end() && c.subgroup_ops; // divides its workgroup by subgroups
			if (given == spec.end()) spec.push_back({SPEC_SUBGROUP, c.subgroup});
			const vk::Footprint f = vk::footprint(spirv, r, spec);
			CHECK(f.local[0] * f.local[1] * f.local[2] <= c.workgroup);
			CHECK(f.shared_bytes <= c.shared_bytes);
			CHECK(r.push_bytes <= c.push_bytes);
			if (shares_rows) CHECK(f.local[0] % c.subgroup == 0);
			// a workgroup is a part of a subgroup, or whole subgroups
			if (r.subgroup_ops) CHECK((f.local[0] <= c.subgroup || f.local[0] % c.subgroup == 0));
		}
	}
}

TEST_CASE("kernel choice: weights of fetched tokens fit shared memory, whatever keys and heads") {
	struct Gpu {
		uint32_t vendor, shared, subgroup;
	};
	for (const Gpu& gpu :
	     {Gpu{0x10de, 48 << 10, 32}, {0x1002, 32 << 10, 32}, {0x1002, 64 << 10, 64}, {0x8086, 64 << 10, 16}})
		for (const uint32_t head_dim : {64u, 128u, 192u, 256u, 512u})
			for (const uint32_t share : {1u, 2u, 4u, 6u, 8u, 16u})
				for (const uint32_t bits : {1u, 2u, 4u, 8u})
					for (const Scale scale : {Scale::PerChannel, Scale::PerToken}) {
						vk::Caps c;
						c.vendor = gpu.vendor, c.shared_bytes = gpu.shared;
						c.workgroup = 1024, c.subgroup = c.subgroup_min = c.subgroup_max = gpu.subgroup;
						c.subgroup_ops = c.int_dot = true;
						Quant k;
						k.bits = uint8_t(bits), k.scale = scale, k.group = scale == Scale::PerChannel ? 32 : head_dim;
						const vk::Choice how = vk::choose_weigh(c, k, head_dim, share, 32);
						CAPTURE(gpu.shared);
						CAPTURE(head_dim);
						CAPTURE(share);
						CAPTURE(bits);
						const KernelBlob& blob = kernel_blobs()[size_t(how.kernel)];
						std::vector<vk::SpecValue> spec = how.spec;
						spec.push_back({SPEC_SUBGROUP, c.subgroup});
						CHECK(vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), spec).shared_bytes <=
						      c.shared_bytes);
					}
}

// Otherwise choose_expert_matmul() could choose a build without the list of experts, or one of two equal builds by
// their order.
TEST_CASE(
    "kernel choice: builds of a kernel differ in what they need, and those of projections have twins with experts") {
	std::set<std::pair<Kernel, uint32_t>> builds;
	for (const KernelBlob& b : kernel_blobs()) {
		INFO(b.name);
		CHECK(builds.emplace(b.of, b.needs).second);
		CHECK(kernel_blobs()[size_t(b.of)].needs == 0);
	}
	for (const auto& [of, needs] : builds)
		if (of == Kernel::matmul || of == Kernel::matvec) CHECK(builds.count({of, needs | need::experts}) == 1);
}

TEST_CASE("kernel choice: every value that can be measured is one, and changes what it names on devices that have it") {
	vk::Caps c;
	c.vendor = 0x10de, c.cores = 20;
	c.workgroup = 1024, c.shared_bytes = 48 << 10;
	c.subgroup = c.subgroup_min = c.subgroup_max = 32, c.subgroup_ops = c.int_dot = true;
	c.matrix = {16, 16, 16};
	const auto names = [](const vk::Caps& caps) {
		std::vector<std::string> out;
		for (const Tunable& t : vk::tunables(caps)) out.push_back(t.name);
		return out;
	};
	CHECK(names(c) == std::vector<std::string>{"matrices", "attend_matrices", "shared_queries", "prompt_queries",
	                                           "project_int8", "attend_int8", "matvec_rows", "tile_fill",
	                                           "tile_buffers", "pieces"});
	const auto with = [&](const char* name, const char* value) {
		vk::Caps out = c;
		REQUIRE(vk::set_knob(out.knobs, name, value));
		return out;
	};
	for (const Tunable& t : vk::tunables(c)) {
		CHECK(t.value == t.values[0]);
		for (const std::string& v : t.values) {
			const vk::Caps now = with(t.name.c_str(), v.c_str());
			for (const Tunable& same : vk::tunables(now))
				if (same.name == t.name) CHECK(same.value == v);
		}
	}
	vk::Knobs knobs;
	CHECK_FALSE(vk::set_knob(knobs, "matvec_rows", "3"));
	CHECK_FALSE(vk::set_knob(knobs, "rows", "4"));

	vk::Caps rows = c;
	rows.matrix_rows = true;
	CHECK(std::ranges::count(names(rows), "register_scores") == 1);
	CHECK_FALSE(vk::uses_matrices(with("matrices", "off")));
	CHECK(names(with("matrices", "off")) ==
	      std::vector<std::string>{"matrices", "project_int8", "attend_int8", "matvec_rows", "tile_fill", "pieces"});
	CHECK_FALSE(vk::attends_by_matrices(with("attend_matrices", "off"), 64));
	CHECK(vk::uses_matrices(with("attend_matrices", "off")));
	CHECK_FALSE(vk::projects_in_int8(with("project_int8", "off"), DType::Q4_K));
	CHECK_FALSE(vk::attends_in_int8(with("attend_int8", "off")));
	const auto groups = [](const vk::Caps& caps, uint32_t rows, uint32_t tokens, bool decode) {
		return vk::choose_matmul(caps, DType::F16, rows, 4096, tokens, MATMUL_STORE, decode).groups;
	};
	CHECK(groups(c, 4096, 1, true).x == 2 * groups(with("matvec_rows", "4"), 4096, 1, true).x);
	CHECK(groups(c, 4096, 8, true).x == groups(with("matvec_rows", "1"), 4096, 8, true).x); // several rows: the rule
	CHECK(groups(with("tile_fill", "32"), 4096, 512, false).x == 32);
	CHECK(groups(with("tile_fill", "512"), 4096, 512, false).x == 64);
	const auto lanes = [](const vk::Caps& caps, uint32_t rows, uint32_t tokens) {
		return vk::choose_matmul(caps, DType::F16, rows, 4096, tokens, MATMUL_STORE, false).spec[0].value;
	};
	CHECK(lanes(c, 4096, 64) == 64); // a short prompt: workgroups of fewer rows
	CHECK(lanes(c, 16384, 64) == 128);
	CHECK(lanes(c, 16384, 512) == 256);
	CHECK(vk::choose_matmul(c, DType::F16, 4096, 4096, 64, MATMUL_STORE, false).groups.x == 128);
	for (const uint32_t tokens : {16u, 64u, 512u}) {
		const vk::MatmulChoice two =
		    vk::choose_matmul(with("tile_buffers", "2"), DType::F16, 4096, 4096, tokens, MATMUL_STORE, false);
		CHECK(two.spec.back().id == SPEC_BUFFERS);
		const KernelBlob& blob = kernel_blobs()[size_t(two.kernel)];
		std::vector<vk::SpecValue> spec = two.spec;
		spec.push_back({SPEC_SUBGROUP, 32});
		CHECK(vk::footprint(blob.spirv, vk::reflect(blob.spirv, blob.name), spec).shared_bytes <= c.shared_bytes);
	}
	vk::Caps tight = with("tile_buffers", "2"); // no room for a second tile
	tight.shared_bytes = 20 << 10;
	for (const vk::SpecValue& s : vk::choose_matmul(tight, DType::F16, 4096, 4096, 512, MATMUL_STORE, false).spec)
		CHECK(s.id != SPEC_BUFFERS);
	DeviceInfo own, half;
	vk::describe_choices(c, own), vk::describe_choices(with("pieces", "50"), half);
	CHECK(half.fill_workgroups * 2 == own.fill_workgroups);
	CHECK(half.most_pieces * 2 == own.most_pieces);

	vk::Caps software;
	software.is_cpu = software.subgroup_ops = true;
	software.subgroup = 8, software.texel_range = 1 << 30;
	CHECK(names(software) == std::vector<std::string>{"texels"});
	software.knobs[vk::Knob::Texels] = 0;
	CHECK(names(software) == std::vector<std::string>{"texels", "matvec_rows", "tile_fill"});
}
