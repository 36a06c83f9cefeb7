// Bodies of requests to kvrun serve: JSON within its limits, and work that no client waits for.
#include "engine/core/json_reader.h"
#include "tools/serve/gate.h"
#include "tools/serve/requests.h"
#include "tools/serve/restore_choice.h"
#include "tools/serve/worker.h"
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <future>
#include <random>

using namespace kvrun;
using namespace kvrun::serve;

namespace {

std::string refusal(const std::string& text, const JsonLimits& limits) {
	Json j;
	std::string why;
	CHECK_FALSE(read_json(text, limits, j, why));
	return why;
}

std::string random_json(std::mt19937& r, int depth) {
	const auto some = [&](auto one) {
		std::string out;
		for (unsigned n = r() % 5, i = 0; i < n; ++i) out += fmt::format("{}{}", i ? "," : "", one());
		return out;
	};
	switch (r() % (depth > 0 ? 8 : 6)) {
	case 0: return "null";
	case 1: return r() % 2 ? "true" : " false ";
	case 2: return std::to_string(int64_t(r()) - (1 << 30));
	case 3: return fmt::format("{}.5e-3", r());
	case 4: return fmt::format(R"("\u00e9\n{}")", std::string(r() % 30, 'x'));
	case 5: return "18446744073709551615";
	case 6: return fmt::format("[{}]", some([&] { return random_json(r, depth - 1); }));
	default:
		return fmt::format("{{{}}}",
		                   some([&] { return fmt::format(R"("{}" : {})", r() % 4, random_json(r, depth - 1)); }));
	}
}

} // namespace

TEST_CASE("serve: a file is restored unless reading the prompt is faster") {
	constexpr uint64_t MiB = 1 << 20;
	RestoreChoice c;
	CHECK(c.restores(400 * MiB, 1000)); // nothing is measured yet
	c.read(3000, 1);
	CHECK(c.restores(400 * MiB, 1000));
	c.restored(400 * MiB, 4);
	CHECK(c.restores(400 * MiB, 13'000));
	CHECK(c.restores(7 * MiB, 1)); // small
	int skipped = 0;
	while (!c.restores(400 * MiB, 6000)) ++skipped; // 4 s against 2 s; the storage is tried again
	CHECK(skipped == 4);
	c.restored(1 * MiB, 100); // says nothing about rates
	c.read(10, 100);
	CHECK(c.restores(400 * MiB, 13'000));
}

TEST_CASE("T52 serve: JSON is read as the library reads it, with keys that come twice") {
	std::mt19937 r(1);
	for (int i = 0; i < 3000; ++i) {
		std::string text = random_json(r, 5);
		if (i % 3 == 0) text.insert(r() % (text.size() + 1), 1, "{}[],:\"x0\x80"[r() % 10]);
		const Json want = Json::parse(text, nullptr, /*allow_exceptions=*/false);
		Json got;
		std::string why;
		const bool good = read_json(text, {}, got, why);
		CAPTURE(text);
		REQUIRE(good == !want.is_discarded());
		if (good) REQUIRE(got.dump() == want.dump());
	}
}

TEST_CASE("T52 serve: limits of JSON hold to the number") {
	JsonLimits l;
	l.depth = 3, l.values = 6, l.keys = 4;
	Json j;
	std::string why;
	CHECK(read_json("[[[]]]", l, j, why));
	CHECK(refusal("[[[[]]]]", l) == "is nested deeper than 3 levels");
	CHECK(read_json("[1,2,3,4,5]", l, j, why));
	CHECK(refusal("[1,2,3,4,5,6]", l) == "has more than 6 values");
	CHECK(refusal("[1,2,3,4,5,[]]", l) == "has more than 6 values");
	l.values = 100;
	CHECK(read_json(R"([{"a":1,"b":2}, {"a":1,"a":2}])", l, j, why));
	CHECK(refusal(R"([{"a":1,"b":2}, {"a":1,"a":2,"a":3}])", l) == "has more than 4 keys");
}

TEST_CASE("T52 serve: bodies have these limits") {
	const auto why = [](const std::string& body) {
		try {
			parse_body(body);
		} catch (const ApiError& e) {
			CHECK(e.status == 400);
			return std::string(e.what());
		}
		return std::string();
	};
	const auto repeated = [](const std::string& one, size_t n) {
		std::string all;
		for (size_t i = 0; i < n; ++i) all += one;
		return all;
	};
	const auto in_x = [](const std::string& value) { return fmt::format(R"({{"x":{}}})", value); };
	const auto nested = [&](size_t n) { return in_x(repeated("[", n) + repeated("]", n)); };
	CHECK(why(nested(63)) == "");
	CHECK(why(nested(64)) == "the body is nested deeper than 64 levels");
	const auto values = [&](size_t n) { return in_x(fmt::format("[{}0]", repeated("0,", n - 1))); };
	CHECK(why(values((2 << 20) - 2)) == "");
	CHECK(why(values((2 << 20) - 1)) == "the body has more than 2097152 values");
	const auto keys = [&](size_t n) { return fmt::format("{{{}\"x\":0}}", repeated("\"x\":0,", n - 1)); };
	CHECK(why(keys(65536)) == "");
	CHECK(why(keys(65537)) == "the body has more than 65536 keys");
}

TEST_CASE("serve: errors before the model is loaded have the form of the requested API") {
	Gate gate;
	const auto type = [](const Response& r) { return Json::parse(r.body).value("type", ""); };
	const auto kind = [](const Response& r) { return Json::parse(r.body)["error"]["type"].get<std::string>(); };
	HttpRequest r;
	for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
		r.path = path;
		CHECK(type(*gate.refuse(r)) == "error");
		CHECK(kind(*gate.refuse(r)) == "overloaded_error");
		CHECK(type(gate.failure(r, 413, "long")) == "error");
		CHECK(kind(gate.failure(r, 413, "long")) == "request_too_large");
	}
	for (const char* path : {"", "/", "/v1/chat/completions"}) {
		r.path = path;
		CHECK(type(*gate.refuse(r)) == "");
		CHECK(kind(*gate.refuse(r)) == "server_error");
		CHECK(kind(gate.failure(r, 413, "long")) == "invalid_request_error");
	}
}

TEST_CASE("T56 serve: reading a body ends once its client has gone") {
	std::string body = R"({"x":[0)";
	for (int i = 0; i < 100000; ++i) body += ",0";
	body += "]}";
	int asked = 0;
	CHECK_THROWS_AS(parse_body(body, [&] { return ++asked == 3; }), ApiError);
	CHECK(asked == 3);
}

TEST_CASE("T56 serve: tasks that nobody waits for are dropped with what they hold; others run in their order") {
	std::promise<void> begun, go_on, ended;
	const auto body = std::make_shared<int>(), other = std::make_shared<int>();
	std::vector<int> ran;
	bool gone = false;
	{
		Worker w;
		w.post([&] { begun.set_value(), go_on.get_future().wait(); });
		begun.get_future().wait(); // all others wait for this one
		w.post([&, body] { ran.push_back(1); }, [&] { return gone; });
		w.post([&, other] { ran.push_back(2); }, [] { return false; });
		w.post([&] { ran.push_back(3), ended.set_value(); });
		w.drop_unwanted();
		CHECK(body.use_count() == 2);
		gone = true;
		w.drop_unwanted();
		CHECK(body.use_count() == 1);
		CHECK(other.use_count() == 2);
		go_on.set_value();
		ended.get_future().wait();
	}
	CHECK(ran == std::vector{2, 3});
}
