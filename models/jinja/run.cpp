// One rendering: limits, errors, and creation of values.
#include "models/jinja/run.h"
#include "engine/core/utf8.h"
#include "models/jinja/operators.h"
#include <algorithm>
#include <numeric>

namespace kvrun::jinja {

// ---- errors

void Run::fail_text(Code code, const std::string& what) const {
	throw Error(code, fmt::format("{}, line {}: {}", name_, line, one_line(what, 400)));
}
void Run::out_of_steps() const {
	fail("the template takes more than {} steps; it loops too long for this conversation", limits_.steps);
}
void Run::out_of_memory() const {
	fail("the template's values need more than {} bytes; shorten the conversation", limits_.value_bytes);
}
void Run::too_deep() const { fail("the template is too deep: more than {} levels inside each other", limits_.depth); }

void Run::fail_undefined(const Value& v) const {
	const Missing* m = v.missing;
	if (!m) fail("the value is undefined");
	if (m->why) fail("{}", m->why);
	if (m->owner) fail("'{}' has no attribute '{}'", m->owner, m->name);
	fail("'{}' is undefined", m->name);
}

// ---- values

Value Run::copy_text(std::string_view s, bool data) {
	if (s.size() > bytes_left()) out_of_memory();
	char* at = array<char>(s.size());
	std::copy(s.begin(), s.end(), at);
	return text({at, s.size()}, data);
}

Value Run::make_list(std::span<const Value> items, Kind kind) {
	Value* at = array<Value>(items.size());
	std::copy(items.begin(), items.end(), at);
	Value v;
	v.kind = kind;
	v.items = make(Items{at, items.size()});
	return v;
}

Value Run::make_iterator(std::span<const Value> items) {
	Value* at = array<Value>(items.size());
	std::copy(items.begin(), items.end(), at);
	Value v;
	v.kind = Kind::Iterator;
	v.iterator = make(Iterator{at, items.size(), 0});
	return v;
}

Value Run::make_dict(std::span<const Value> keys, std::span<const Value> values) {
	constexpr size_t kFew = 8; // up to this size a linear search is as fast
	const size_t n = keys.size();
	Value *k = array<Value>(n), *val = array<Value>(n);
	std::copy(keys.begin(), keys.end(), k);
	std::copy(values.begin(), values.end(), val);
	uint32_t* order = nullptr;
	if (n > kFew && std::all_of(k, k + n, [](const Value& key) { return key.is(Kind::Text); })) {
		order = array<uint32_t>(n);
		std::iota(order, order + n, 0u);
		std::sort(order, order + n, [&](uint32_t a, uint32_t b) {
			spend_bytes(std::min(k[a].size, k[b].size));
			return k[a].str() < k[b].str();
		});
	}
	Value v;
	v.kind = Kind::Dict;
	v.dict = make(Dict{k, val, n, order});
	return v;
}

Value Run::undefined(std::string_view name, const char* owner) {
	Value v;
	v.missing = make(Missing{name, owner, nullptr});
	return v;
}
Value Run::undefined_because(const char* why) {
	Value v;
	v.missing = make(Missing{{}, nullptr, why});
	return v;
}

// ---- TextBuilder

void TextBuilder::grow(size_t n) {
	if (output_ && n > run_.limits_.output_bytes - bytes_.size())
		run_.fail("the rendered text has more than {} bytes; shorten the conversation", run_.limits_.output_bytes);
	if (n > (run_.limits_.value_bytes - run_.used_) / 2) run_.out_of_memory();
	run_.used_ += 2 * n; // bytes and marks
	held_ += 2 * n;
	run_.spend_bytes(n);
}

void TextBuilder::add(std::string_view bytes, bool data) {
	if (bytes.empty()) return;
	grow(bytes.size());
	if (bytes_.empty()) data_ = data;
	if (data != data_ && marks_.empty()) marks_.assign(bytes_.size(), data_);
	bytes_ += bytes;
	if (!marks_.empty()) marks_.resize(bytes_.size(), data);
}

void TextBuilder::add(const Value& t) {
	if (!t.marks) return add(t.str(), t.data);
	if (t.size == 0) return;
	grow(t.size);
	if (marks_.empty()) marks_.assign(bytes_.size(), data_);
	bytes_ += t.str();
	marks_.insert(marks_.end(), t.marks, t.marks + t.size);
}

void TextBuilder::add_times(const Value& t, size_t n) {
	if (t.size == 0) return;
	for (size_t i = 0; i < n; ++i) {
		run_.spend();
		add(t);
	}
}

Value TextBuilder::take() {
	Value v = run_.copy_text(bytes_, data_);
	if (!marks_.empty()) {
		v.data = true; // in part
		uint8_t* marks = run_.array<uint8_t>(marks_.size());
		std::copy(marks_.begin(), marks_.end(), marks);
		v.marks = marks;
	}
	bytes_.clear();
	marks_.clear();
	run_.used_ -= held_;
	held_ = 0;
	return v;
}

// ---- DictBuilder

void DictBuilder::set(const Value& key, const Value& value) {
	check_key(run_, key);
	for (size_t i = 0; i < keys_.size(); ++i)
		if (equal(run_, keys_[i], key)) {
			values_[i] = value;
			return;
		}
	keys_.push_back(key);
	values_.push_back(value);
}

} // namespace kvrun::jinja
