// GGUF v2/v3: metadata and tensor table of a file, or of all parts of a split file. Every length and offset is checked
// before use. Metadata is kept in memory. Tensor data is read on demand: a file that shrinks gives an error, not a
// signal.
#pragma once
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "models/seeded_hash.h"
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvrun {

enum class GgufType : uint8_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };
const char* gguf_type_name(GgufType);

struct GgufEntry { // a key of the metadata and its value
	std::string_view key;
	GgufType type;
	GgufType element; // type of the elements of an Array; else equal to type
	uint64_t count;   // elements of an Array; else 1
	std::span<const std::byte>
	    bytes; // the value as stored; a string without its length; strings of an Array with their lengths
};

enum class KvBHalf : uint8_t { None, Keys, Values };
struct KvBPart { // of a tensor that is computed from attn_kv_b (models/kv_b.h)
	KvBHalf half = KvBHalf::None;
	DType type = DType::F32;       // of attn_kv_b
	uint32_t rank = 0;             // its columns
	uint32_t keys = 0, values = 0; // its rows of a head
};

// The only tensor of I64 that is accepted: numbers of tokens (models/fusion.h).
constexpr const char* kTokenTable = "d2t";
// The only tensors of I32: numbers of experts (Experts::by_token). None is below 0, so they are read as U32.
constexpr const char* kExpertTable = ".ffn_gate_tid2eid.weight";

struct GgufTensor {
	std::string_view name;
	DType type;
	uint32_t n_dims;   // 1..4
	uint64_t shape[4]; // innermost first, as in the file; unused dimensions are 1
	uint64_t at;       // bytes from the start of its part
	uint64_t bytes;    // in the file
	uint32_t part;     // index of the part of a split model
	KvBPart kv_b = {}; // then `at` is of attn_kv_b, the rest of what is made of it
	uint64_t cols() const { return shape[0]; }
	uint64_t rows() const { return shape[1] * shape[2] * shape[3]; } // the parser checked that it does not overflow
};

class Gguf {
 public:
	// Opens a regular file, and the other parts when it is `...-00001-of-0000N.gguf`.
	static Gguf open(const std::string& path);
	// Parses a file in memory; `bytes` must outlive the result.
	static Gguf parse(std::string name, std::span<const std::byte> bytes);
	Gguf(Gguf&&) noexcept;
	Gguf& operator=(Gguf&&) noexcept;
	~Gguf();

	const std::string& name() const { return name_; } // path as given, made printable for messages
	// Folder for files about this one, for where none can lie beside it; empty: there is none.
	const std::string& cache_folder() const { return cache_folder_; }
	void set_cache_folder(const std::string& folder) { cache_folder_ = folder; }
	uint32_t version() const { return version_; }
	uint32_t n_parts() const;
	uint64_t file_bytes() const;                                     // all parts together
	uint64_t tensor_bytes() const;                                   // all tensors together
	std::span<const GgufEntry> entries() const { return entries_; }  // in file order, of the first part
	std::span<const GgufTensor> tensors() const { return tensors_; } // in file order, all parts
	const GgufEntry* find(std::string_view key) const;               // nullptr when absent
	const GgufTensor* find_tensor(std::string_view name) const;      // nullptr when absent
	bool splits_latents() const { return !names_.empty(); }          // some tensors are parts of attn_kv_b

	// Typed access. A missing key is an error unless there is a fallback; a key of another type always is an error.
	// Integers of any unsigned width are accepted if the value fits.
	uint64_t u64(std::string_view key) const;
	uint32_t u32(std::string_view key) const;
	uint32_t u32(std::string_view key, uint32_t fallback) const;
	// The common value of a key that has one number per layer, or one for all; Unsupported if layers differ.
	uint32_t u32_same(std::string_view key) const;
	float f32(std::string_view key) const; // finite
	float f32(std::string_view key, float fallback) const;
	bool flag(std::string_view key, bool fallback) const;
	std::string_view text(std::string_view key) const;
	std::string_view text(std::string_view key, std::string_view fallback) const;
	std::vector<std::string_view> texts(std::string_view key) const; // array of strings
	std::vector<float> floats(std::string_view key) const;           // array of F32
	std::vector<int64_t> ints(std::string_view key) const;           // array of integers of one type, or of bools: 0, 1

	// Reads bytes [offset, offset + dst.size()) of a tensor's data. Throws Error{Io} if the file has become shorter.
	void read(const GgufTensor&, uint64_t offset, std::span<std::byte> dst) const;

 private:
	struct Part; // an open file and its header
	Gguf();
	Part& add_part(std::unique_ptr<Part>);
	void add_split_parts(const std::string& path);
	void split_latents();
	uint64_t split_number(const Part&, std::string_view key) const;
	const GgufEntry& entry(std::string_view key) const;
	[[noreturn]] void fail_type(const GgufEntry&, const char* want) const;
	std::string name_, cache_folder_;
	uint32_t version_ = 0;
	std::vector<std::unique_ptr<Part>> parts_;
	std::vector<GgufEntry> entries_;
	std::vector<GgufTensor> tensors_;
	std::vector<std::unique_ptr<const std::string>> names_;                       // of tensors that the file has not
	std::unordered_map<std::string_view, size_t, TextHash> entry_of_, tensor_of_; // name -> index
};

} // namespace kvrun
