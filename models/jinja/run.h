// One rendering: its memory, its limits, and the line that is at work. Everything that computes values gets a Run.
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

// What one rendering may use; a template that needs more ends with an error.
struct Limits {
	uint64_t steps = 1'000'000;             // units of work, each some 40 ns of CPU at most: see Run::spend
	uint32_t depth = 256;                   // expressions, statements, calls and values inside each other
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
	std::optional<std::tm> now; // what strftime_now tells; none: the clock's time

	// Throws Error{Invalid} with the template's name and line in front.
	template <class... A> [[noreturn]] void fail(fmt::format_string<A...> f, A&&... a) const {
		fail_text(Code::Invalid, fmt::format(f, std::forward<A>(a)...));
	}
	// The same with Error{Format}: the template names something that does not exist.
	template <class... A> [[noreturn]] void fail_unknown(fmt::format_string<A...> f, A&&... a) const {
		fail_text(Code::Format,
		          fmt::format(f, std::forward<A>(a)...) + "; --chat-template NAME takes another template");
	}

	// Every expression, statement and value visited costs a step, and so does every run of bytes that is touched: the
	// limit on steps is the only limit on time.
	void spend(uint64_t steps = 1) {
		if (steps > limits_.steps - spent_) out_of_steps();
		spent_ += steps;
	}
	void spend_bytes(size_t n) { spend(1 + n / 256); } // copied, compared or counted
	void spend_search(size_t n) { spend(1 + n / 32); } // searched for a text
	void spend_chars(size_t n) { spend(1 + n / 8); }   // decoded and looked up one by one

	// Uninitialised memory that lasts until the end of the rendering; nothing in it is destroyed.
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

// One level of recursion, of whatever kind.
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

// Puts a Text together, byte by byte with its marks.
class TextBuilder {
 public:
	enum class For { Value, Output }; // the output has a limit of its own
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
	size_t held_ = 0; // bytes of the Run's memory that this text counts as
	std::string bytes_;
	std::vector<uint8_t> marks_; // (bytes) or empty while all are as data_
	bool data_ = false;
};

// Puts a Dict together: a key that comes twice keeps its place and gets the later value.
class DictBuilder {
 public:
	explicit DictBuilder(Run& run) : run_(run) {}
	void set(const Value& key, const Value& value); // fails where the key cannot be one
	Value take() { return run_.make_dict(keys_, values_); }

 private:
	Run& run_;
	std::vector<Value> keys_, values_;
};

} // namespace kvrun::jinja
