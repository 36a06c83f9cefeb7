// The C API from many threads at once, for ThreadSanitizer (tools/dev/sanitize.sh): nothing may crash, and each thread
// computes what it computes alone. Every loop is bounded in count.
#include "objects.h"
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <unistd.h>

using namespace api;

namespace {

// Runs `f(thread, round)` on n threads, `rounds` times each, starting together.
template <class F> void race(int n, int rounds, F f) {
	std::atomic<int> ready = 0;
	std::vector<std::thread> threads;
	for (int t = 0; t < n; ++t)
		threads.emplace_back([&, t] {
			++ready;
			while (ready < n) std::this_thread::yield();
			for (int i = 0; i < rounds; ++i) f(t, i);
		});
	for (std::thread& t : threads) t.join();
}

struct Statuses { // results of calls, from any thread
	std::atomic<uint32_t> seen = 0;
	kvrun_status add(kvrun_status s) {
		seen |= 1u << uint32_t(-int(s));
		return s;
	}
	bool only(std::initializer_list<kvrun_status> allowed) const {
		uint32_t mask = 0;
		for (const kvrun_status s : allowed) mask |= 1u << uint32_t(-int(s));
		return (seen & ~mask) == 0;
	}
};

std::vector<std::byte> bytes_of(const std::string& path) {
	std::ifstream in(path, std::ios::binary);
	const std::string s{std::istreambuf_iterator<char>(in), {}};
	return {reinterpret_cast<const std::byte*>(s.data()), reinterpret_cast<const std::byte*>(s.data()) + s.size()};
}
void write_bytes(const std::string& path, const std::vector<std::byte>& b) {
	std::ofstream(path, std::ios::binary | std::ios::trunc)
	    .write(reinterpret_cast<const char*>(b.data()), std::streamsize(b.size()));
}

std::vector<uint32_t> held_by(kvrun_session* s) {
	std::vector<uint32_t> t(4096);
	size_t n = 0;
	if (kvrun_session_tokens(s, t.data(), t.size(), &n) != KVRUN_OK) return {};
	t.resize(n);
	return t;
}

} // namespace

TEST_CASE("T79 races: one session used, looked at, forked and freed by several threads") {
	Engine e;
	for (int round = 0; round < 3; ++round) {
		kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
		so.kv = "kivi2", so.ctx = 256;
		kvrun_session* s = nullptr;
		REQUIRE(kvrun_session_open(&s, e.h, &so) == KVRUN_OK);
		Statuses seen;
		race(5, 20, [&](int t, int i) {
			if (t == 0) {
				const kvrun_generate_options o = greedy(4, nullptr);
				seen.add(kvrun_generate_text(s, "Once", &o, nullptr));
			} else if (t == 1) {
				kvrun_session_info info = KVRUN_SESSION_INFO_INIT;
				seen.add(kvrun_session_get_info(s, &info));
				held_by(s);
			} else if (t == 2) {
				uint8_t tiers[512];
				size_t n = 0;
				seen.add(kvrun_session_tiers(s, 0, 0, tiers, sizeof tiers, &n));
			} else if (t == 3) {
				kvrun_session* fork = nullptr;
				if (seen.add(kvrun_session_fork(&fork, s)) == KVRUN_OK) kvrun_session_free(fork);
			} else if (i == 15) {
				kvrun_session_free(s); // others find that it is gone
			} else {
				seen.add(kvrun_session_truncate(s, 0));
			}
		});
		CHECK(seen.only({KVRUN_OK, KVRUN_EBUSY, KVRUN_EINVALID}));
	}
	kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
	REQUIRE(kvrun_engine_get_info(e.h, &info) == KVRUN_OK);
	CHECK(info.kv_used_bytes == 0);
	CHECK(answer(e, "kivi2", kText, 12) == answer(e, "kivi2", kText, 12));
}

TEST_CASE("T79, T80 races: handles of freed objects are errors while others are opened") {
	Engine e;
	std::vector<std::atomic<kvrun_session*>> slots(4);
	Statuses seen;
	race(4, 60, [&](int t, int i) {
		std::atomic<kvrun_session*>& slot = slots[size_t(t + i) % slots.size()];
		kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
		so.ctx = 64;
		kvrun_session* s = nullptr;
		if (i % 3 == 0 && seen.add(kvrun_session_open(&s, e.h, &so)) == KVRUN_OK) {
			kvrun_session_free(slot.exchange(s));
		} else if (kvrun_session* other = slot.load()) {
			const uint32_t token = 5;
			std::vector<float> logits(4096);
			size_t row = 0;
			kvrun_session_info info = KVRUN_SESSION_INFO_INIT;
			seen.add(kvrun_session_get_info(other, &info));
			if (i % 3 == 1) seen.add(kvrun_prefill(other, &token, 1, nullptr, nullptr));
			if (i % 3 == 2) {
				kvrun_engine_info model = KVRUN_ENGINE_INFO_INIT;
				REQUIRE(kvrun_engine_get_info(e.h, &model) == KVRUN_OK);
				logits.resize(model.vocab);
				seen.add(kvrun_decode(&other, &token, 1, logits.data(), &row));
			}
		}
	});
	for (std::atomic<kvrun_session*>& s : slots) kvrun_session_free(s);
	CHECK(seen.only({KVRUN_OK, KVRUN_EBUSY, KVRUN_EINVALID, KVRUN_ECONTEXT}));
	kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
	REQUIRE(kvrun_engine_get_info(e.h, &info) == KVRUN_OK);
	CHECK(info.kv_used_bytes == 0);
}

TEST_CASE("T79 races: batches, a canceller, the log and each thread's own last error") {
	Engine e;
	const auto want = answer(e, "fp16", kText, 10);
	std::atomic<int> lines = 0;
	REQUIRE(kvrun_set_log([](int, const char*, size_t, void* n) { ++*static_cast<std::atomic<int>*>(n); }, 3, &lines) ==
	        KVRUN_OK);
	kvrun_canceller* stop = nullptr;
	REQUIRE(kvrun_canceller_new(&stop) == KVRUN_OK);
	std::atomic<int> same = 0;
	Statuses cancelled;
	race(4, 3, [&](int t, int i) {
		if (t < 2) { // each has its own batch
			Session s(e);
			Told told;
			const kvrun_generate_options o = greedy(10, &told);
			const auto p = tokens_of(e, kText);
			kvrun_batch* b = nullptr;
			uint32_t id = 0;
			size_t active = 1;
			if (kvrun_batch_new(&b, e.h) != KVRUN_OK ||
			    kvrun_batch_add(b, s.h, p.data(), p.size(), &o, &id) != KVRUN_OK)
				return;
			while (active && kvrun_batch_step(b, &active) == KVRUN_OK) {}
			kvrun_batch_take(b, id, nullptr);
			kvrun_batch_free(b);
			same += told.tokens == want;
		} else if (t == 2) {
			Session s(e, "zipcache");
			kvrun_generate_options o = greedy(300, nullptr);
			o.canceller = stop;
			cancelled.add(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr));
		} else {
			if (i == 1) kvrun_cancel(stop);
			for (int k = 0; k < 50; ++k) {
				kvrun_metadata_get(e.h, 1u << 30, nullptr, nullptr);
				const std::string mine = kvrun_last_error();
				same += mine.empty() ? 1000 : 0; // another thread's success has not cleared it
				kvrun_set_log(nullptr, 0, nullptr);
			}
		}
	});
	CHECK(same == 6);
	CHECK(cancelled.only({KVRUN_OK, KVRUN_ECANCELLED}));
	kvrun_canceller_free(stop);
	kvrun_set_log(nullptr, 0, nullptr);
}

TEST_CASE("T79, T81 races: engines opened and freed while their sessions are in use") {
	Statuses seen;
	race(3, 4, [&](int, int) {
		kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
		d.device = device();
		kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
		o.model_path = kTiny.c_str(), o.device = &d;
		kvrun_engine* e = nullptr;
		if (seen.add(kvrun_engine_open(&e, &o)) != KVRUN_OK) return;
		kvrun_session* s = nullptr;
		kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
		so.ctx = 64;
		seen.add(kvrun_session_open(&s, e, &so));
		std::thread other([&] { kvrun_engine_free(e); }); // the session keeps what it needs
		const uint32_t tokens[] = {1, 2, 3};
		const kvrun_generate_options g = greedy(5, nullptr);
		seen.add(kvrun_generate(s, tokens, 3, &g, nullptr));
		other.join();
		kvrun_session_free(s);
	});
	CHECK(seen.only({KVRUN_OK, KVRUN_EINVALID}));
}

TEST_CASE("T44, T46 races: session files of two models swapped and overwritten while they are read") {
	Engine e, tiny(kTiny);
	namespace fs = std::filesystem;
	const fs::path folder = fs::temp_directory_path() / ("kvrun-races-" + std::to_string(getpid()));
	fs::create_directory(folder);
	const std::string path = (folder / "session.kvs").string(), next = (folder / "next.kvs").string();
	// two of this model, one of another
	std::vector<std::vector<std::byte>> files;
	std::set<std::vector<uint32_t>> known;
	for (const char* text : {"Once upon a time", "The code of Ben is 1234. What is the code of Ben?"}) {
		Session s(e, "kivi2");
		const kvrun_generate_options o = greedy(150, nullptr);
		REQUIRE(kvrun_generate_text(s.h, text, &o, nullptr) == KVRUN_OK);
		REQUIRE(kvrun_session_save(s.h, path.c_str(), nullptr, 0) == KVRUN_OK);
		files.push_back(bytes_of(path));
		known.insert(held_by(s.h));
	}
	{
		Session s(tiny);
		const uint32_t tokens[] = {1, 2, 3};
		REQUIRE(kvrun_prefill(s.h, tokens, 3, nullptr, nullptr) == KVRUN_OK);
		REQUIRE(kvrun_session_save(s.h, path.c_str(), nullptr, 0) == KVRUN_OK);
		files.push_back(bytes_of(path));
	}
	for (const bool in_place : {false, true}) { // renamed over, as kvrun does; or overwritten by another program
		CAPTURE(in_place);
		std::atomic<bool> done = false;
		std::thread writer([&] {
			for (int i = 0; i < 1000000 && !done; ++i) { // as long as the reader reads
				const std::vector<std::byte>& b = files[size_t(i) % files.size()];
				write_bytes(in_place ? path : next, b);
				std::error_code ec; // Windows replaces no file that is being read
				if (!in_place) fs::rename(next, path, ec);
#ifndef _WIN32
				CHECK(!ec);
#endif
			}
		});
		Statuses seen;
		int restored = 0, unknown = 0;
		for (int i = 0; i < 60 || (restored == 0 && i < 20000); ++i) { // the writer may start late
			kvrun_session* s = nullptr;
			if (seen.add(kvrun_session_restore(&s, e.h, path.c_str())) == KVRUN_OK) {
				++restored;
				unknown += known.count(held_by(s)) == 0;
				const kvrun_generate_options o = greedy(2, nullptr);
				const uint32_t token = 5;
				seen.add(kvrun_generate(s, &token, 1, &o, nullptr));
			} else {
				CHECK(s == nullptr);
			}
			kvrun_session_free(s);
		}
		done = true;
		writer.join();
		CHECK(unknown == 0); // a complete one, or none
		if (!in_place) {
			CHECK(restored > 0);
			CHECK(seen.only({KVRUN_OK, KVRUN_EINVALID})); // never a mix of two
		} else {
			CHECK(seen.only({KVRUN_OK, KVRUN_EINVALID, KVRUN_EFORMAT, KVRUN_EIO}));
		}
	}
	fs::remove_all(folder);
}
