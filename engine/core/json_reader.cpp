// Reads JSON in time linear in its length, within limits.
#include "engine/core/json_reader.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

namespace kvrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kAskEvery = 1024; // values between calls of stop()

// Receives the parser's events. Values and keys of open arrays and objects wait on two stacks, so that each container
// is created once, with known size.
class Builder {
 public:
	explicit Builder(const JsonLimits& limits) : limits_(limits) {}
	Json take() { return std::move(values_.back()); }
	std::string why;

	// The names and arguments are those of nlohmann::json_sax.
	bool null() { return add(nullptr); }
	bool boolean(bool x) { return add(x); }
	bool number_integer(int64_t x) { return add(x); }
	bool number_unsigned(uint64_t x) { return add(x); }
	bool number_float(double x, const std::string&) { return add(x); }
	bool string(std::string& x) { return add(std::move(x)); }
	bool binary(Json::binary_t&) { return false; } // does not occur in text
	bool start_array(size_t) { return open(); }
	bool start_object(size_t) { return open(); }

	bool key(std::string& k) {
		if (keys_.size() + n_closed_keys_ >= limits_.keys)
			return refuse("has more than " + std::to_string(limits_.keys) + " keys");
		keys_.push_back(std::move(k));
		return true;
	}

	bool end_array() {
		const auto first = values_.begin() + ptrdiff_t(open_.back().values);
		Json::array_t items(std::make_move_iterator(first), std::make_move_iterator(values_.end()));
		return close(std::move(items));
	}

	bool end_object() {
		const size_t from = open_.back().values, keys = open_.back().keys, n = keys_.size() - keys;
		// of members with equal keys: the value of the last, at the position of the first
		std::vector<size_t> order(n);
		std::iota(order.begin(), order.end(), size_t(0));
		std::ranges::stable_sort(order, {}, [&](size_t i) -> const std::string& { return keys_[keys + i]; });
		std::vector<bool> repeated(n);
		for (size_t i = 0; i < n;) {
			const size_t first = order[i], begin = i;
			while (i < n && keys_[keys + order[i]] == keys_[keys + first]) repeated[order[i++]] = true;
			repeated[first] = false;
			if (i - begin > 1) values_[from + first] = std::move(values_[from + order[i - 1]]);
		}
		Json::object_t members;
		Json::object_t::Container& list = members; // emplace() of the map itself would search all keys
		list.reserve(n);
		for (size_t i = 0; i < n; ++i)
			if (!repeated[i]) list.emplace_back(std::move(keys_[keys + i]), std::move(values_[from + i]));
		return close(std::move(members));
	}

	template <class E> bool parse_error(size_t at, const std::string&, const E&) { // its message quotes the text
		return refuse("is not JSON in UTF-8 from byte " + std::to_string(at) + " on");
	}

 private:
	struct Open {
		size_t values, keys; // on the stacks before it
	};

	bool refuse(std::string what) {
		if (why.empty()) why = std::move(what);
		return false;
	}
	bool count() {
		if (++n_values_ > limits_.values) return refuse("has more than " + std::to_string(limits_.values) + " values");
		return n_values_ % kAskEvery || !limits_.stop || !limits_.stop() || refuse("is not wanted any more");
	}
	bool open() {
		if (open_.size() >= limits_.depth)
			return refuse("is nested deeper than " + std::to_string(limits_.depth) + " levels");
		open_.push_back({values_.size(), keys_.size()});
		return count();
	}
	template <class T> bool add(T&& value) {
		values_.emplace_back(std::forward<T>(value));
		return count();
	}
	template <class Container> bool close(Container&& container) {
		n_closed_keys_ += keys_.size() - open_.back().keys;
		values_.resize(open_.back().values);
		keys_.resize(open_.back().keys);
		open_.pop_back();
		values_.emplace_back(std::move(container));
		return true;
	}

	const JsonLimits& limits_;
	std::vector<Json> values_;
	std::vector<std::string> keys_;
	std::vector<Open> open_;
	size_t n_values_ = 0, n_closed_keys_ = 0;
};

} // namespace

bool read_json(std::string_view text, const JsonLimits& limits, Json& out, std::string& why) {
	Builder builder(limits);
	const bool good = Json::sax_parse(text, &builder);
	if (good)
		out = builder.take();
	else
		why = std::move(builder.why);
	return good;
}

} // namespace kvrun
