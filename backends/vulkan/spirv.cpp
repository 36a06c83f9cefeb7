// Reads bindings, push size, local size, specialization ids and shared memory out of a SPIR-V blob.
#include "backends/vulkan/spirv.h"
#include "engine/core/error.h"
#include <algorithm>
#include <map>
#include <unordered_map>

namespace kvrun::vk {
namespace {

// Opcodes of the SPIR-V specification that are read here.
enum Opcode : uint32_t {
	OpCapability = 17,
	OpName = 5,
	OpEntryPoint = 15,
	OpExecutionMode = 16,
	OpTypeBool = 20,
	OpTypeInt = 21,
	OpTypeFloat = 22,
	OpTypeVector = 23,
	OpTypeMatrix = 24,
	OpTypeImage = 25,
	OpTypeArray = 28,
	OpTypeRuntimeArray = 29,
	OpTypeStruct = 30,
	OpTypePointer = 32,
	OpConstantTrue = 41,
	OpConstantFalse = 42,
	OpConstant = 43,
	OpSpecConstantTrue = 48,
	OpSpecConstantFalse = 49,
	OpSpecConstant = 50,
	OpSpecConstantComposite = 51,
	OpSpecConstantOp = 52,
	OpVariable = 59,
	OpDecorate = 71,
	OpMemberDecorate = 72,
};
enum ArithmeticOp : uint32_t {
	OpCompositeExtract = 81,
	OpBitcast = 124,
	OpIAdd = 128,
	OpISub = 130,
	OpIMul = 132,
	OpUDiv = 134,
	OpSDiv = 135,
	OpUMod = 137,
	OpSelect = 169,
	OpIEqual = 170,
	OpINotEqual = 171,
	OpLogicalOr = 166,
	OpLogicalAnd = 167,
	OpLogicalNot = 168,
	OpUGreaterThan = 172,
	OpUGreaterThanEqual = 174,
	OpULessThan = 176,
	OpULessThanEqual = 178,
	OpShiftRightLogical = 194,
	OpShiftLeftLogical = 196,
	OpBitwiseOr = 197,
	OpBitwiseAnd = 199,
};
enum Decoration : uint32_t {
	SpecId = 1,
	ArrayStride = 6,
	BuiltIn = 11,
	NonWritable = 24,
	NonReadable = 25,
	BindingNo = 33,
	Set = 34,
	Offset = 35
};
enum : uint32_t {
	BuiltInWorkgroupSize = 25,
	StorageUniformConstant = 0,
	StorageWorkgroup = 4,
	StoragePushConstant = 9,
	StorageBuffer = 12,
	StorageUniform = 2
};
enum : uint32_t { ModeLocalSize = 17, ExecutionGLCompute = 5, CapabilityGroupNonUniform = 61 };

// KVRUN_SHADERS loads blobs from files, so their contents are not trusted.
constexpr int kMostSteps = 100000; // of evaluating one constant or type, which may refer to itself
constexpr int kDeepest = 64;

struct Node { // one result id
	uint32_t op = 0;
	std::vector<uint32_t> args; // words after the result id (and after the type id where there is one)
	uint32_t type = 0;
	std::string name;
	int spec_id = -1, binding = -1, set = -1, builtin = -1;
	uint32_t stride = 0;
	bool non_writable = false, non_readable = false;
	std::map<uint32_t, uint32_t> offsets; // of struct members
	uint32_t members_non_writable = 0, members_non_readable = 0;

	uint32_t arg(size_t i) const {
		if (i >= args.size())
			fail(Code::Format, "SPIR-V instruction {} ({}) has {} operands, too few", op, name, args.size());
		return args[i];
	}
};

struct Module {
	std::unordered_map<uint32_t, Node> ids;
	std::vector<uint32_t> variables;
	uint32_t local_size[3] = {1, 1, 1};
	bool compute = false, subgroup_ops = false;

	const Node& at(uint32_t id) const {
		auto it = ids.find(id);
		if (it == ids.end()) fail(Code::Format, "SPIR-V id {} is used but not defined", id);
		return it->second;
	}
};

std::string text(std::span<const uint32_t> words) {
	std::string s;
	for (uint32_t w : words)
		for (int i = 0; i < 4; ++i) {
			const char c = char(w >> (8 * i));
			if (!c) return s;
			s += c;
		}
	return s;
}

void decorate(Node& n, uint32_t what, std::span<const uint32_t> value) {
	const uint32_t v = value.empty() ? 0 : value[0];
	switch (what) {
	case SpecId: n.spec_id = int(v); break;
	case ArrayStride: n.stride = v; break;
	case BuiltIn: n.builtin = int(v); break;
	case NonWritable: n.non_writable = true; break;
	case NonReadable: n.non_readable = true; break;
	case BindingNo: n.binding = int(v); break;
	case Set: n.set = int(v); break;
	default: break;
	}
}

void decorate_member(Node& n, uint32_t member, uint32_t what, std::span<const uint32_t> value) {
	if (what == NonWritable) ++n.members_non_writable;
	if (what == NonReadable) ++n.members_non_readable;
	if (what == Offset && !value.empty()) n.offsets[member] = value[0];
}

// Number of words up to and including the result id: 1 for types, 2 for constants and variables (after their type), 0
// for others.
size_t words_to_result(uint32_t op) {
	switch (op) {
	case OpTypeBool:
	case OpTypeInt:
	case OpTypeFloat:
	case OpTypeVector:
	case OpTypeMatrix:
	case OpTypeImage:
	case OpTypeArray:
	case OpTypeRuntimeArray:
	case OpTypeStruct:
	case OpTypePointer: return 1;
	case OpConstantTrue:
	case OpConstantFalse:
	case OpConstant:
	case OpSpecConstantTrue:
	case OpSpecConstantFalse:
	case OpSpecConstant:
	case OpSpecConstantComposite:
	case OpSpecConstantOp:
	case OpVariable: return 2;
	default: return 0;
	}
}

Module parse(std::span<const uint32_t> w) {
	Module m;
	if (w.size() < 5 || w[0] != 0x07230203u) fail(Code::Format, "not SPIR-V: bad magic");
	for (size_t i = 5; i < w.size();) {
		const uint32_t op = w[i] & 0xffffu, n = w[i] >> 16;
		if (n == 0 || i + n > w.size()) fail(Code::Format, "SPIR-V is truncated at word {}", i);
		const std::span<const uint32_t> a = w.subspan(i + 1, n - 1);
		const auto least = [&](size_t operands) {
			if (a.size() < operands)
				fail(Code::Format, "SPIR-V instruction {} at word {} has {} operands, expected {}", op, i, a.size(),
				     operands);
		};
		switch (op) {
		case OpCapability: least(1), m.subgroup_ops |= a[0] == CapabilityGroupNonUniform; break;
		case OpName: least(1), m.ids[a[0]].name = text(a.subspan(1)); break;
		case OpEntryPoint: least(1), m.compute = a[0] == ExecutionGLCompute; break;
		case OpExecutionMode:
			least(2);
			if (a[1] == ModeLocalSize) {
				least(5);
				std::copy_n(a.begin() + 2, 3, m.local_size);
			}
			break;
		case OpDecorate: least(2), decorate(m.ids[a[0]], a[1], a.subspan(2)); break;
		case OpMemberDecorate: least(3), decorate_member(m.ids[a[0]], a[1], a[2], a.subspan(3)); break;
		case OpVariable: least(2), m.variables.push_back(a[1]); break;
		default: break;
		}
		if (const size_t before = words_to_result(op)) {
			least(before);
			Node& t = m.ids[a[before - 1]];
			t.op = op;
			if (before == 2) t.type = a[0];
			t.args.assign(a.begin() + std::ptrdiff_t(before), a.end());
		}
		i += n;
	}
	return m;
}

struct Evaluator {
	const Module& m;
	std::span<const SpecValue> spec;
	mutable int steps = 0, depth = 0;

	struct Step { // one level of recursion
		const Evaluator& e;
		explicit Step(const Evaluator& of) : e(of) {
			if (++e.steps > kMostSteps || e.depth >= kDeepest)
				fail(Code::Format, "SPIR-V constants and types are nested too deep, or in themselves");
			++e.depth;
		}
		~Step() { --e.depth; }
		Step(const Step&) = delete;
	};

	uint32_t value(uint32_t id) const {
		const Step step(*this);
		const Node& n = m.at(id);
		if (n.spec_id >= 0)
			for (const SpecValue& s : spec)
				if (int(s.id) == n.spec_id) return s.value;
		switch (n.op) {
		case OpConstantTrue:
		case OpSpecConstantTrue: return 1;
		case OpConstantFalse:
		case OpSpecConstantFalse: return 0;
		case OpConstant:
		case OpSpecConstant: return n.arg(0);
		case OpSpecConstantOp: return operation(n);
		default: fail(Code::Format, "SPIR-V id {} ({}) is no constant", id, n.name);
		}
	}
	uint32_t operation(const Node& n) const {
		auto arg = [&](size_t i) { return value(n.arg(i + 1)); };
		switch (n.arg(0)) {
		case OpCompositeExtract: return value(m.at(n.arg(1)).arg(n.arg(2)));
		case OpBitcast: return arg(0);
		case OpIAdd: return arg(0) + arg(1);
		case OpISub: return arg(0) - arg(1);
		case OpIMul: return arg(0) * arg(1);
		case OpUDiv:
		case OpSDiv: return arg(1) ? arg(0) / arg(1) : 0;
		case OpUMod: return arg(1) ? arg(0) % arg(1) : 0;
		case OpSelect: return arg(0) ? arg(1) : arg(2);
		case OpIEqual: return arg(0) == arg(1);
		case OpINotEqual: return arg(0) != arg(1);
		case OpUGreaterThan: return arg(0) > arg(1);
		case OpUGreaterThanEqual: return arg(0) >= arg(1);
		case OpULessThan: return arg(0) < arg(1);
		case OpULessThanEqual: return arg(0) <= arg(1);
		case OpShiftRightLogical: return arg(0) >> (arg(1) & 31u);
		case OpShiftLeftLogical: return arg(0) << (arg(1) & 31u);
		case OpLogicalOr:
		case OpBitwiseOr: return arg(0) | arg(1);
		case OpLogicalAnd:
		case OpBitwiseAnd: return arg(0) & arg(1);
		case OpLogicalNot: return !arg(0);
		default:
			fail(Code::Format,
			     "SPIR-V constant operation {} is not evaluated here; use + - * / % << >> && || ! ?:", n.args[0]);
		}
	}
	// Bytes of a type in shared memory, where arrays have no stride of their own. UINT32_MAX: that, or more.
	uint32_t bytes(uint32_t type) const {
		const Step step(*this);
		const Node& t = m.at(type);
		const auto at_most = [](uint64_t n) { return uint32_t(std::min<uint64_t>(n, UINT32_MAX)); };
		switch (t.op) {
		case OpTypeBool: return 4;
		case OpTypeInt:
		case OpTypeFloat: return t.arg(0) / 8;
		case OpTypeVector:
		case OpTypeMatrix: return at_most(uint64_t(t.arg(1)) * bytes(t.arg(0)));
		case OpTypeArray: return at_most(uint64_t(value(t.arg(1))) * (t.stride ? t.stride : bytes(t.arg(0))));
		case OpTypeStruct: {
			uint64_t end = 0;
			for (uint32_t i = 0; i < t.args.size(); ++i) {
				const auto offset = t.offsets.find(i);
				end = std::max(end, (offset != t.offsets.end() ? offset->second : end) + bytes(t.args[i]));
			}
			return at_most(end);
		}
		default: fail(Code::Format, "SPIR-V type {} has no size", type);
		}
	}
};

void check_place(const Node& var, const std::string& kernel) {
	if (var.set != 0 || var.binding < 0 || var.binding >= int(kMaxBindings))
		fail(Code::Format, "shader {}: {} is set {} binding {}, expected set 0 and binding below {}", kernel, var.name,
		     var.set, var.binding, kMaxBindings);
}

// `uniform utextureBuffer name`: 16 bytes of the view per texel, whatever their meaning in the shader.
void add_texel_buffer(Reflection& r, const Node& var, const Node& image, const std::string& kernel) {
	constexpr uint32_t kDimBuffer = 5,
	                   kSampled = 1; // operands: sampled type, dim, depth, arrayed, multisampled, sampled
	check_place(var, kernel);
	if (image.op != OpTypeImage || image.args.size() < 6 || image.args[1] != kDimBuffer || image.args[5] != kSampled)
		fail(Code::Format, "shader {}: {} is no storage buffer and no uniform texel buffer", kernel, var.name);
	if (r.bindings.size() <= size_t(var.binding)) r.bindings.resize(size_t(var.binding) + 1);
	r.bindings[size_t(var.binding)] = {
	    .name = var.name, .present = true, .texel = true, .writable = false, .stride = 16};
}

void add_binding(Reflection& r, const Module& m, const Node& var, const Node& block, const std::string& kernel) {
	check_place(var, kernel);
	if (r.bindings.size() <= size_t(var.binding)) r.bindings.resize(size_t(var.binding) + 1);
	Binding& b = r.bindings[size_t(var.binding)];
	const bool all_ro = block.members_non_writable == block.args.size(),
	           all_wo = block.members_non_readable == block.args.size();
	const bool ro = var.non_writable || all_ro, wo = var.non_readable || all_wo;
	const bool again = b.present; // a second block on the same binding: the same words with another element type
	b.name = var.name.empty() ? block.name : var.name;
	b.writable = (again && b.writable) || !ro;
	b.readable = (again && b.readable) || !wo;
	b.present = true;
	if (block.op != OpTypeStruct || block.args.empty()) fail(Code::Format, "shader {}: {} is no block", kernel, b.name);
	const Node& last = m.at(block.args.back());
	const uint32_t stride = last.op == OpTypeRuntimeArray ? last.stride : 4;
	b.stride = again ? std::max(b.stride, stride) : stride;
}

} // namespace

Reflection reflect(std::span<const uint32_t> spirv, const std::string& name) {
	const Module m = parse(spirv);
	if (!m.compute) fail(Code::Format, "shader {} is no compute shader", name);
	const Evaluator eval{.m = m, .spec = {}};
	Reflection r;
	std::copy_n(m.local_size, 3, r.local_size);
	r.subgroup_ops = m.subgroup_ops;
	for (const auto& [id, n] : m.ids) {
		if (n.spec_id >= int(kMaxSpec))
			fail(Code::Format, "shader {}: specialization id {} is not below {}", name, n.spec_id, kMaxSpec);
		if (n.spec_id >= 0) r.spec_ids |= 1u << n.spec_id;
		if (n.builtin == int(BuiltInWorkgroupSize) && n.op == OpSpecConstantComposite)
			for (int i = 0; i < 3; ++i) {
				r.local_id[i] = m.at(n.arg(size_t(i))).spec_id;
				r.local_size[i] = eval.value(n.arg(size_t(i)));
			}
	}
	for (uint32_t id : m.variables) {
		const Node& var = m.at(id);
		const Node& pointer = m.at(var.type);
		const uint32_t storage = pointer.arg(0);
		if (storage == StoragePushConstant) r.push_bytes = eval.bytes(pointer.arg(1));
		if (storage == StorageBuffer) add_binding(r, m, var, m.at(pointer.arg(1)), name);
		if (storage == StorageUniformConstant) add_texel_buffer(r, var, m.at(pointer.arg(1)), name);
		if (storage == StorageUniform)
			fail(Code::Format, "shader {}: uniform blocks are not used here, take a buffer", name);
	}
	return r;
}

Footprint footprint(std::span<const uint32_t> spirv, const Reflection& r, std::span<const SpecValue> spec) {
	const Module m = parse(spirv);
	const Evaluator eval{.m = m, .spec = spec};
	Footprint f{{r.local_size[0], r.local_size[1], r.local_size[2]}, 0};
	for (int i = 0; i < 3; ++i)
		for (const SpecValue& s : spec)
			if (r.local_id[i] == int(s.id)) f.local[i] = s.value;
	uint64_t shared = 0;
	for (uint32_t id : m.variables) {
		const Node& pointer = m.at(m.at(id).type);
		if (pointer.arg(0) == StorageWorkgroup) shared += eval.bytes(pointer.arg(1));
	}
	f.shared_bytes = uint32_t(std::min<uint64_t>(shared, UINT32_MAX));
	return f;
}

} // namespace kvrun::vk
