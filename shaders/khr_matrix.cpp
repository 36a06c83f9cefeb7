// Build tool: converts SPIR-V of SPV_NV_cooperative_matrix to SPV_KHR_cooperative_matrix, which drivers of all vendors
// accept.
//
// Debian 12's glslang writes only the NV extension. In KHR, the type also says what a matrix is used as (first operand,
// second operand, sum), and loads and stores name the memory order differently. The use of a matrix follows from the
// products that take it; so operands of different use must have different types (other ids for their sizes). In NV the
// length of a matrix is a constant of the module; in KHR it becomes an instruction where it bounds a loop.
//
// Calls of the functions of lib/matrix_rows.glsl become instructions of SPV_NV_cooperative_matrix2, which glslang
// does not know either; these functions are left out.
//
// Usage: khr_matrix IN.spv OUT.spv
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using Words = std::vector<uint32_t>;

enum Op : uint32_t {
	OpName = 5,
	OpExtension = 10,
	OpCapability = 17,
	OpTypeInt = 21,
	OpConstantTrue = 41,
	OpConstantFalse = 42,
	OpConstant = 43,
	OpConstantComposite = 44,
	OpSpecConstantOp = 52,
	OpFunction = 54,
	OpFunctionParameter = 55,
	OpFunctionEnd = 56,
	OpFunctionCall = 57,
	OpLoad = 61,
	OpFConvert = 115,
	OpIAdd = 128,
	OpSLessThan = 177,
	OpTypeMatrixKhr = 4456,
	OpMatrixLoadKhr = 4457,
	OpMatrixStoreKhr = 4458,
	OpMatrixMulAddKhr = 4459,
	OpMatrixLengthKhr = 4460,
	OpTypeMatrixNv = 5358,
	OpMatrixLoadNv = 5359,
	OpMatrixStoreNv = 5360,
	OpMatrixMulAddNv = 5361,
	OpMatrixLengthNv = 5362,
	OpMatrixReduceNv = 5366,
	OpMatrixPerElementNv = 5369,
};
constexpr uint32_t kCapabilityNv = 5357, kCapabilityKhr = 6022, kNoUse = UINT32_MAX;
constexpr uint32_t kReduceRows = 1, kVersion16 = 0x00010600; // the extension requires SPIR-V 1.6

// Functions of lib/matrix_rows.glsl that stand for instructions. Their first parameter is a matrix.
struct StandIn {
	const char* name;
	Op op;
	uint32_t capability;
	const char* calls; // function that the instruction takes; empty: none
};
constexpr StandIn kStandIns[] = {{"row_largest(", OpMatrixReduceNv, 5430, "largest("},
                                 {"to_operand(", OpFConvert, 5431, ""},
                                 {"masked(", OpMatrixPerElementNv, 5432, "masked_element("}};

[[noreturn]] void stop(const std::string& why) {
	std::fprintf(stderr, "khr_matrix: %s\n", why.c_str());
	std::exit(1);
}

struct Instruction {
	uint32_t op;
	std::span<const uint32_t> args;
};

std::vector<Instruction> instructions(const Words& w) {
	if (w.size() < 5 || w[0] != 0x07230203u) stop("not SPIR-V");
	std::vector<Instruction> out;
	for (size_t i = 5; i < w.size();) {
		const uint32_t n = w[i] >> 16;
		if (n == 0 || i + n > w.size()) stop("the module is cut off");
		out.push_back({w[i] & 0xffffu, std::span(w).subspan(i + 1, n - 1)});
		i += n;
	}
	return out;
}

struct Facts {
	uint32_t uint_type = 0;
	std::map<uint32_t, uint32_t> use;          // by matrix type: 0 first operand, 1 second, 2 sum
	std::map<uint32_t, uint32_t> type_of;      // by loaded value or product
	std::map<uint32_t, bool> is_true;          // by boolean constant
	std::map<uint32_t, uint32_t> length;       // by constant that is the number of elements of a lane: the matrix type
	std::map<uint32_t, uint32_t> number;       // by 32-bit constant
	std::map<std::string, uint32_t> functions; // by the beginning of a name, up to its parameters
	std::map<uint32_t, const StandIn*> stand_ins; // by function
	std::set<uint32_t> left_out;                  // ids of these functions and of what is in them
};

void find_stand_ins(Facts& f, const std::vector<Instruction>& all) {
	for (const auto& [op, a] : all)
		if (op == OpName) {
			const std::string name(reinterpret_cast<const char*>(&a[1]));
			f.functions[name.substr(0, name.find('(') + 1)] = a[0];
		}
	bool inside = false;
	for (const auto& [op, a] : all) {
		if (op == OpFunction)
			for (const StandIn& s : kStandIns) {
				const auto at = f.functions.find(s.name);
				if (at == f.functions.end() || at->second != a[1]) continue;
				f.stand_ins[a[1]] = &s;
				inside = true;
			}
		if (inside && (op == OpFunction || op == OpFunctionParameter)) f.left_out.insert(a[1]);
		if (op == OpFunctionEnd) inside = false;
	}
}

void set_use(Facts& f, uint32_t value, uint32_t use) {
	const auto type = f.type_of.find(value);
	if (type == f.type_of.end()) stop("an operand of a product is neither loaded nor a product");
	uint32_t& u = f.use.at(type->second);
	if (u != kNoUse && u != use) stop("operands of different use have one type; give their sizes other constants");
	u = use;
}

bool is_zero(const Facts& f, uint32_t id) {
	const auto n = f.number.find(id);
	return n != f.number.end() && n->second == 0;
}

Facts facts(const std::vector<Instruction>& all) {
	Facts f;
	for (const auto& [op, a] : all) switch (op) {
		case OpTypeInt:
			if (a[1] == 32 && a[2] == 0) f.uint_type = a[0];
			break;
		case OpTypeMatrixNv: f.use[a[0]] = kNoUse; break;
		case OpConstantTrue:
		case OpConstantFalse: f.is_true[a[1]] = op == OpConstantTrue; break;
		case OpSpecConstantOp:
			if (a[2] == OpMatrixLengthNv) f.length[a[1]] = a[3];
			if (a[2] == OpIAdd && f.length.count(a[3]) && is_zero(f, a[4]))
				f.length[a[1]] = f.length[a[3]]; // as an int
			break;
		case OpConstant: f.number[a[1]] = a[2]; break;
		case OpConstantComposite:
		case OpLoad:
		case OpFunctionCall:
		case OpMatrixLoadNv:
		case OpMatrixMulAddNv: f.type_of[a[1]] = a[0]; break;
		default: break;
		}
	for (const auto& [op, a] : all)
		if (op == OpMatrixMulAddNv)
			for (uint32_t use = 0; use < 3; ++use) set_use(f, a[2 + use], use);
	for (const auto& [type, use] : f.use)
		if (use == kNoUse) stop("a matrix type is in no product");
	if (!f.uint_type) stop("there is no type uint");
	find_stand_ins(f, all);
	return f;
}

class Writer {
 public:
	Writer(const Words& in, const Facts& f) : out_(in.begin(), in.begin() + 5), facts_(f), numbers_(in[3]) {
		out_[3] += 3; // the ids of the constants 0, 1, 2
		if (!f.stand_ins.empty()) out_[1] = kVersion16;
	}
	void add(const Instruction& i) {
		const auto a = i.args;
		if (i.op == OpFunction) leaving_out_ = facts_.stand_ins.count(a[1]) > 0;
		if (leaving_out_) {
			if (i.op == OpFunctionEnd) leaving_out_ = false;
			return;
		}
		switch (i.op) {
		case OpName: return facts_.left_out.count(a[0]) ? void() : put(i.op, {}, a);
		case OpCapability:
			if (a[0] != kCapabilityNv) return put(i.op, {}, a);
			for (const auto& [_, s] : facts_.stand_ins) put(i.op, {s->capability});
			return put(i.op, {kCapabilityKhr});
		case OpFunctionCall: {
			const auto s = facts_.stand_ins.find(a[2]);
			return s == facts_.stand_ins.end() ? put(i.op, {}, a) : stand_in(*s->second, a);
		}
		case OpExtension: return extension(i);
		case OpTypeMatrixNv:
			if (!std::exchange(has_numbers_, true))
				for (uint32_t n = 0; n < 3; ++n) put(OpConstant, {facts_.uint_type, number(n), n});
			return put(OpTypeMatrixKhr, {a[0], a[1], a[2], a[3], a[4], number(facts_.use.at(a[0]))});
		case OpMatrixLoadNv: return put(OpMatrixLoadKhr, {a[0], a[1], a[2], order(a[4]), a[3]}, a.subspan(5));
		case OpMatrixStoreNv: return put(OpMatrixStoreKhr, {a[0], a[1], order(a[3]), a[2]}, a.subspan(4));
		case OpMatrixMulAddNv: return put(OpMatrixMulAddKhr, {}, a);
		case OpSpecConstantOp:
			if (facts_.length.count(a[1])) return;
			return put(i.op, {}, a);
		case OpSLessThan: return put(i.op, {a[0], a[1], a[2], operand(a[3])});
		case OpMatrixLengthNv: return put(OpMatrixLengthKhr, {}, a);
		default: return put(i.op, {}, a);
		}
	}
	const Words& words() const { return out_; }

 private:
	uint32_t number(uint32_t n) const { return numbers_ + n; }
	// In KHR a length is an instruction, not a constant. Drivers need not fold it, so it may only bound a loop.
	uint32_t operand(uint32_t id) {
		const auto length = facts_.length.find(id);
		if (length == facts_.length.end()) return id;
		put(OpMatrixLengthKhr, {facts_.uint_type, out_[3], length->second});
		return out_[3]++;
	}
	uint32_t order(uint32_t by_columns) const { // id of a boolean to id of RowMajor 0 or ColumnMajor 1
		const auto b = facts_.is_true.find(by_columns);
		if (b == facts_.is_true.end()) stop("the order in memory of a load or store is no constant");
		return number(b->second);
	}
	void stand_in(const StandIn& s, std::span<const uint32_t> call) {
		switch (s.op) {
		case OpMatrixReduceNv: return put(s.op, {call[0], call[1], call[3], kReduceRows, facts_.functions.at(s.calls)});
		case OpMatrixPerElementNv:
			return put(s.op, {call[0], call[1], call[3], facts_.functions.at(s.calls)}, call.subspan(4));
		default: return put(s.op, {call[0], call[1], call[3]});
		}
	}
	void put(uint32_t op, std::initializer_list<uint32_t> first, std::span<const uint32_t> rest = {}) {
		out_.push_back(uint32_t(1 + first.size() + rest.size()) << 16 | op);
		out_.insert(out_.end(), first);
		out_.insert(out_.end(), rest.begin(), rest.end());
	}
	void extension(const Instruction& i) {
		const std::string name(reinterpret_cast<const char*>(i.args.data()));
		if (name != "SPV_NV_cooperative_matrix") return put(i.op, {}, i.args);
		constexpr char names[2][28] = {"SPV_KHR_cooperative_matrix", "SPV_NV_cooperative_matrix2"};
		uint32_t text[7];
		for (const auto& n : names) {
			std::memcpy(text, n, sizeof text);
			if (&n == names || !facts_.stand_ins.empty()) put(i.op, {}, text);
		}
	}
	Words out_;
	const Facts& facts_;
	const uint32_t numbers_;
	bool has_numbers_ = false, leaving_out_ = false;
};

} // namespace

int main(int argc, char** argv) {
	if (argc != 3) stop("usage: khr_matrix IN.spv OUT.spv");
	std::ifstream in(argv[1], std::ios::binary);
	const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
	Words words(bytes.size() / 4);
	std::memcpy(words.data(), bytes.data(), words.size() * 4);
	const std::vector<Instruction> all = instructions(words);
	const Facts f = facts(all);
	Writer writer(words, f);
	for (const Instruction& i : all) writer.add(i);
	std::ofstream out(argv[2], std::ios::binary);
	out.write(reinterpret_cast<const char*>(writer.words().data()), std::streamsize(writer.words().size() * 4));
	out.close();
	if (!out) stop(std::string(argv[2]) + " cannot be written");
}
