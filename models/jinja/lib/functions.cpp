// Global functions: Jinja's, and HF's raise_exception and strftime_now.
#include "engine/core/system/machine.h"
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/tables.h"
#include <algorithm>
#include <ctime>

namespace kvrun::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000; // the limit of Jinja's sandbox

Value range(Run& run, const Value&, const Args& args) {
	if (!args.named.empty() || args.list.empty() || args.list.size() > 3) run.fail("range takes one to three numbers");
	int64_t n[3] = {0, 0, 1};
	bool data = false;
	for (size_t i = 0; i < args.list.size(); ++i) {
		const Value& v = args.list[i];
		if (v.is(Kind::Undefined)) run.fail_undefined(v);
		const size_t to = args.list.size() == 1 ? 1 : i;
		n[to] = int_argument(run, args, &v, 0);
		data |= v.data;
		if (std::abs(std::max(n[to], -INT64_MAX)) > int64_t(1) << 60) run.fail("range: {} is too far", n[to]);
	}
	const auto [start, stop, step] = n;
	if (step == 0) run.fail("range: the step is 0");
	int64_t count = 0;
	if (step > 0 ? start < stop : start > stop)
		count = step > 0 ? (stop - start - 1) / step + 1 : (start - stop - 1) / -step + 1;
	if (count > kMaxRange) run.fail("range: {} numbers, at most {} are allowed", count, kMaxRange);
	Value v;
	v.kind = Kind::Range;
	v.data = data;
	v.range = run.make(Range{start, step, count, stop});
	return v;
}

void add_mapping(Run& run, const Args& args, DictBuilder& d) {
	if (args.list.size() > 1) run.fail("'{}' takes one dict at most, and names", args.callee);
	if (!args.list.empty()) {
		const Value& from = args.list[0];
		if (from.is(Kind::Dict)) {
			for (size_t i = 0; i < from.dict->n; ++i) d.set(from.dict->keys[i], from.dict->values[i]);
		} else {
			Cursor pairs(run, from);
			for (Value pair; pairs.next(pair);) {
				Cursor two(run, pair);
				Value key, value, more;
				if (!two.next(key) || !two.next(value) || two.next(more))
					run.fail("'{}' takes pairs of key and value", args.callee);
				d.set(key, value);
			}
		}
	}
	for (const Named& n : args.named) d.set(n.name, n.value);
}

Value dict(Run& run, const Value&, const Args& args) {
	DictBuilder d(run);
	add_mapping(run, args, d);
	return d.take();
}

Value make_namespace(Run& run, const Value& self, const Args& args) {
	const Value entries = dict(run, self, args);
	Value v;
	v.kind = Kind::Namespace;
	v.space = run.make(Namespace{nullptr});
	Namespace::Entry** at = &v.space->first;
	for (size_t i = 0; i < entries.dict->n; ++i) {
		if (!entries.dict->keys[i].is(Kind::Text)) continue; // attributes have text names
		*at = run.make(Namespace::Entry{entries.dict->keys[i], entries.dict->values[i], nullptr});
		at = &(*at)->next;
	}
	return v;
}

Value cycler(Run& run, const Value&, const Args& args) {
	if (!args.named.empty() || args.list.empty()) run.fail("cycler takes one value or more");
	Value v;
	v.kind = Kind::Cycler;
	v.cycler = run.make(Cycler{run.make_list(args.list, Kind::Tuple).items, 0});
	return v;
}

Value joiner(Run& run, const Value&, const Args& args) {
	const auto [sep] = bind(run, args, {"sep"});
	Value v;
	v.kind = Kind::Joiner;
	v.joiner = run.make(Joiner{sep ? *sep : text(", "), false});
	return v;
}

Value raise_exception(Run& run, const Value&, const Args& args) {
	const auto [message] = bind(run, args, {"message"}, 1);
	run.fail("{}", to_text(run, *message).str());
}

// Converts one specifier at a time, so that each needs only a few bytes.
Value strftime_now(Run& run, const Value&, const Args& args) {
	const auto [format] = bind(run, args, {"format"}, 1);
	const std::string_view f = text_argument(run, args, format, "");
	const std::tm now = run.now ? *run.now : sys::local_time();
	constexpr uint64_t kConversion = 16; // steps; strftime() is slow
	run.spend(kConversion);
	TextBuilder out(run);
	for (size_t at = 0; at < f.size();) {
		run.spend(kConversion);
		const size_t start = at;
		at = std::min(f.find('%', at), f.size());
		out.add(part(*format, start, at - start));
		if (at == f.size()) break;
		std::string spec = "%";
		++at;
		if (at < f.size() && std::string_view("-_0^#EO").find(f[at]) != f.npos) spec += f[at++]; // glibc's flags
		constexpr std::string_view kKnown = "aAbBcCdDeFgGhHIjmMnprRStTuUVwWxXyYZz%";
		if (at == f.size() || kKnown.find(f[at]) == f.npos) run.fail("strftime_now: unknown conversion in '{}'", f);
		spec += f[at++];
		if (spec.ends_with('Z') || spec.ends_with('z')) continue; // empty: the time has no zone, as in Python
		out.add(sys::format_time(spec, now), tainted(*format));
	}
	return out.take();
}

constexpr Builtin kFunctions[] = {
    {"cycler", cycler},
    {"dict", dict},
    {"joiner", joiner},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"range", range},
    {"strftime_now", strftime_now},
};

} // namespace

std::span<const Builtin> functions() { return kFunctions; }

} // namespace kvrun::jinja
