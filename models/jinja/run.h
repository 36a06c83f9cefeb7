// One rendering: its memory, its limits, and the current line. All code that computes values gets a Run.
#pragma once
#include "engine/core/error.h"
#include "models/jinja/value.h"
#include <ctime>
#include <initializer_list>
#include <memory_resource>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvrun::jinja {

// Limits of one rendering; a template that needs more fails.
struct Limits {
	uint64_t steps = 1'000'000;             // units of work, each at most about 40 ns of CPU: see Run::spend
	uint32_t depth = 256;                   // nesting of expressions, statements, calls and values
	size_t output_bytes = size_t(4) << 20;  // rendered text
	size_t value_bytes = size_t(128) << 20; // all values together; nothing is freed before the end
};

class Run {
 public:
	Run(std::string name, const Limits& limits) : name_(std::move(name)), limits_(limits) {}
	Run(const Run&) = delete;

	const Limits& limits() const { return limits_; }
	const std::string& name() const { return name_; }
	uint32_t line = 0;          // of the template, for messages
	std::optional<std::tm> now; // time for strftime_now; none: the clock's

	// Throws Error{Invalid} with the template's name and line before the text.
	template <class... A> [[noreturn]] void fail(fmt::format_string<A...> f, A&&... a) const {
		fail_text(Code::Invalid, fmt::format(f, std::forward<A>(a)...));
	}
	// The same with Error{Format}: the template names something that does not exist.
	template <class... A> [[noreturn]] void fail_unknown(fmt::format_string<A...> f, A&&... a) const {
		fail_text(Code::Format,
		          fmt::format(f, std::forward<A>(a)...) + "; --chat-template NAME takes another template");
	}

	// Each visited expression, statement and value costs a step, and work on bytes costs steps by their number: the
	// limit on steps is the only limit on time.
	void spend(uint64_t steps = 1) {
		if (steps > limits_.steps - spent_) out_of_steps();
		spent_ += steps;
	}
	void spend_bytes(size_t n) { spend(1 + n / 256); } // copied, compared or counted
	void spend_search(size_t n) { spend(1 + n / 32); } // searched for a text
	void spend_chars(size_t n) { spend(1 + n / 8); }   // decoded and looked up one by one

	// Uninitialised memory that lasts until the end of the rendering; no destructors run.
	template <class T> T* array(size_t n) {
		static_assert(std::is_trivially_destructible_v<T>);
		if (n > (limits_.value_bytes - used_) / sizeof(T)) out_of_memory();
		used_ += n * sizeof(T);
		spend(n * sizeof(T) / 256);
		return static_cast<T*>(memory_.allocate(n == 0 ? 1 : n * sizeof(T), alignof(T)));
	}
	template <class T> T* make(T v) { return new (array<T>(1)) T(v); }
	size_t bytes_left() const { return limits_.value_bytes - used_; }

	Value copy_text(std::string_view, bool data);
	Value make_list(std::span<const Value>, Kind = Kind::List); // or Tuple
	Value make_list(std::initializer_list<Value> v, Kind k = Kind::List) {
		return make_list(std::span<const Value>(v.begin(), v.size()), k);
	}
	Value make_iterator(std::span<const Value>);
	// Keys are distinct (see DictBuilder) and hashable.
	Value make_dict(std::span<const Value> keys, std::span<const Value> values);
	Value undefined(std::string_view name, const char* owner = nullptr);
	Value undefined_because(const char* why);
	[[noreturn]] void fail_undefined(const Value&) const;

 private:
	friend class Deeper;
	friend class TextBuilder;
	[[noreturn]] void fail_text(Code, const std::string&) const;
	[[noreturn]] void out_of_steps() const;
	[[noreturn]] void out_of_memory() const;
	[[noreturn]] void too_deep() const;

	std::string name_;
	Limits limits_;
	uint64_t spent_ = 0;
	size_t used_ = 0;
	uint32_t depth_ = 0;
	std::pmr::monotonic_buffer_resource memory_;
};

// One level of recursion of any kind.
class Deeper {
 public:
	explicit Deeper(Run& run) : run_(run) {
		if (run_.depth_ >= run_.limits_.depth) run_.too_deep();
		++run_.depth_;
	}
	~Deeper() { --run_.depth_; }
	Deeper(const Deeper&) = delete;

 private:
	Run& run_;
};

// Builds a Text with a mark per byte.
class TextBuilder {
 public:
	enum class For { Value, Output }; // the output has its own limit
	explicit TextBuilder(Run& run, For what = For::Value) : run_(run), output_(what == For::Output) {}
	~TextBuilder() { run_.used_ -= held_; }
	TextBuilder(const TextBuilder&) = delete;

	void add(std::string_view bytes, bool data);
	void add(const Value& text);
	void add_times(const Value& text, size_t n);
	Value take(); // a Text; leaves this empty

	const std::string& bytes() const { return bytes_; }
	bool mark_at(size_t i) const { return marks_.empty() ? data_ : marks_[i] != 0; }

 private:
	void grow(size_t n);
	Run& run_;
	bool output_;
	size_t held_ = 0; // bytes charged to the Run for this text
	std::string bytes_;
	std::vector<uint8_t> marks_; // (bytes), or empty while all equal data_
	bool data_ = false;
};

// Builds a Dict: a repeated key keeps its position and gets the later value.
class DictBuilder {
 public:
	explicit DictBuilder(Run& run) : run_(run) {}
	void set(const Value& key, const Value& value); // fails if the value cannot be a key
	Value take() { return run_.make_dict(keys_, values_); }

 private:
	Run& run_;
	std::vector<Value> keys_, values_;
};

} // namespace kvrun::jinja
