// Session files on every device: a restored session continues with the same bits; damaged files are refused by name.
#include "engine/run/session_file.h"
#include "tests/device/sequences.h"
#include "tests/support/session_header.h"
#include "tests/support/temp_folder.h"
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <random>
#ifndef _WIN32
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace kvrun;

namespace {

const std::string kModel = kGolden + "tiny/" + kPolicyModel + ".gguf";

std::vector<std::byte> read_file(const std::string& path) {
	std::ifstream f(path, std::ios::binary);
	std::vector<char> raw{std::istreambuf_iterator<char>(f), {}};
	const auto bytes = std::as_bytes(std::span(raw));
	return {bytes.begin(), bytes.end()};
}
void write_file(const std::string& path, std::span<const std::byte> bytes) {
	std::ofstream(path, std::ios::binary)
	    .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
}

} // namespace

TEST_CASE("session file: a restored session goes on with the bits of one that never stopped") {
	const TempFolder folder;
	each_row(std::vector<Case>{{"restore"}}, [&](Backend&, const Case&, const TestRow& row) {
		const std::string path = (folder.path / (row.device + ".kvs")).string();
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(70, vocab, 1), turn = random_tokens(33, vocab, 2),
		             more = random_tokens(row.device == "swiftshader" ? 8 : 40, vocab, 3);
		for (const std::string& policy : kShort) {
			CAPTURE(policy);
			Floats want;
			size_t kv_bytes = 0;
			{
				Session s(*engine, with(policy, 300));
				s.prefill(prompt);
				fed(s, turn);
				const std::string note = "a note";
				save_session(s, path, std::as_bytes(std::span(note)));
				kv_bytes = s.kv_bytes().total();
				want = fed(s, more);
				const Floats last = keep(s.prefill(turn));
				want.insert(want.end(), last.begin(), last.end());
			}
			CHECK(engine->pool().used_bytes() == 0);
			{
				const auto s = restore_session(*engine, path);
				CHECK(s->n_tokens() == 103);
				CHECK(s->plan().policy.text == parse_policy(policy).text);
				CHECK(s->ctx() == 300);
				CHECK(std::ranges::equal(s->history().first(70), prompt));
				CHECK(s->kv_bytes().total() == kv_bytes);
				if (policy == "fp16") CHECK(s->exact_position(99) == 99); // no token is compressed
				Floats got = fed(*s, more);
				const Floats last = keep(s->prefill(turn));
				got.insert(got.end(), last.begin(), last.end());
				check_same_bits({row.device, row.number, policy}, got, want);
			}
			CHECK(engine->pool().used_bytes() == 0);
			const auto note = read_session_note(path);
			CHECK(std::string(reinterpret_cast<const char*>(note.data()), note.size()) == "a note");
			// all but the cache: the tokens, the books of a hundred tokens, header and facts
			CHECK(std::filesystem::file_size(path) < kv_bytes + 103 * 4 + 4096);
		}
	});
}

TEST_CASE("session file: saved behind a prompt that was judged to its last token") {
	const TempFolder folder;
	each_row(std::vector<Case>{{"zipcache"}, {"h2o,recent_keep=0,flush=16,budget=24"}},
	         [&](Backend&, const Case& c, const TestRow& row) {
		         const std::string path = (folder.path / (row.device + ".kvs")).string();
		         const auto engine = open_engine(row.device, kModel);
		         const uint32_t vocab = engine->config().vocab;
		         Session s(*engine, with(c.name, 400));
		         s.prefill(random_tokens(150, vocab, 1));
		         save_session(s, path, {});
		         const auto restored = restore_session(*engine, path);
		         const Tokens more = random_tokens(110, vocab, 2); // beyond the next flush
		         check_same_bits(row, fed(*restored, more), fed(s, more));
	         });
}

TEST_CASE("T49 session file: an empty session, and one saved again after it was restored") {
	const TempFolder folder;
	const std::string path = (folder.path / "s.kvs").string(), again = (folder.path / "t.kvs").string();
	const auto engine = open_engine("cpu", kModel);
	save_session(*std::make_unique<Session>(*engine, with("zipcache", 64)), path, {});
	CHECK(restore_session(*engine, path)->n_tokens() == 0);
	Session s(*engine, with("mikv,recent_keep=8,flush=16", 200));
	s.prefill(random_tokens(90, engine->config().vocab, 5));
	save_session(s, path, {});
	const auto restored = restore_session(*engine, path);
	save_session(*restored, again, {});
	CHECK(read_file(path) == read_file(again));
	save_session(s, path, {}); // replaces an older file
	CHECK(read_file(path) == read_file(again));
	CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 2); // nothing is left behind
}

TEST_CASE("T44, T45 session file: of another model, of a newer version, no session file, not there") {
	const TempFolder folder;
	const std::string path = (folder.path / "s.kvs").string();
	const auto engine = open_engine("cpu", kModel), other = open_engine("cpu", kSmallModel);
	Session s(*engine, with("kivi2", 64));
	s.prefill(random_tokens(40, engine->config().vocab, 5));
	save_session(s, path, {});
	const auto refusal = [&](Engine& e) {
		try {
			restore_session(e, path);
			return std::string("none");
		} catch (const Error& error) { return std::string(error.what()); }
	};
	CHECK(refusal(*other).find("session of another model") != std::string::npos);
	const auto seed = [](const char* n) {
		return open_engine("cpu", std::string("synth:llama-3.1-8b,layers=1,dim=512,hidden=512,vocab=1024:f16:") + n);
	};
	const auto first = seed("1"), second = seed("2"); // of one name
	Session named(*first, with("fp16", 64));
	named.prefill(random_tokens(4, first->config().vocab, 5));
	save_session(named, path, {});
	CHECK(refusal(*second).find("another model with the same name, '" + first->config().name + "'") !=
	      std::string::npos);
	save_session(s, path, {});
	std::vector<std::byte> bytes = read_file(path);
	bytes[8] = std::byte(2);
	seal(bytes);
	write_file(path, bytes);
	CHECK(refusal(*engine).find("version is 2, this kvrun reads up to 1") != std::string::npos);
	const std::string other_file(1000, 'x');
	write_file(path, std::as_bytes(std::span(other_file)));
	CHECK(refusal(*engine).find("not a session file") != std::string::npos);
	write_file(path, {});
	CHECK(refusal(*engine).find("it has 0 bytes") != std::string::npos);
	std::filesystem::remove(path);
	CHECK(refusal(*engine).find("no such file") != std::string::npos);
	CHECK_THROWS_AS(save_session(s, (folder.path / "no" / "s.kvs").string(), {}), Error);
	CHECK_THROWS_AS(save_session(s, folder.path.string(), {}), Error);
}

TEST_CASE("T42, T43 session file: each kind of damage is named") {
	const TempFolder folder;
	const std::string path = (folder.path / "s.kvs").string();
	const auto engine = open_engine("cpu", kModel);
	Session s(*engine, with("kivi2", 64));
	s.prefill(random_tokens(40, engine->config().vocab, 5));
	save_session(s, path, {});
	const std::vector<std::byte> good = read_file(path);
	const auto refusal_of = [&](std::vector<std::byte> bytes) {
		write_file(path, bytes);
		try {
			restore_session(*engine, path);
			return std::string("none");
		} catch (const Error& e) { return std::string(e.what()); }
	};
	std::vector<std::byte> bytes = good;
	bytes[kHashAt] ^= std::byte(1); // every field of the header is right, but not its checksum
	CHECK(refusal_of(bytes).find("the header's checksum is wrong") != std::string::npos);
	bytes = good;
	bytes.push_back(std::byte(0)); // after the last section; the header does not include it
	CHECK(refusal_of(bytes).find(fmt::format("it has {} bytes, its header says {}", bytes.size(), good.size())) !=
	      std::string::npos);
	set_word(bytes, 16, bytes.size()); // now the header includes it, but no section does
	seal(bytes);
	CHECK(refusal_of(bytes).find("bytes, its header says") != std::string::npos);
	bytes = good;
	for (const size_t section : {3u, 4u}) { // together 2^64 bytes more: their sum is unchanged
		const size_t at = kSectionsAt + section * 16;
		set_word(bytes, at, word(bytes, at) + (uint64_t(1) << 63));
	}
	set_word(bytes, kHashAt, XXH3_64bits(bytes.data(), kHashAt));
	CHECK(refusal_of(bytes).find("are left in the file") != std::string::npos);
	REQUIRE(word(good, kSectionsAt + 4 * 16) == 0); // no note: the file ends with the cache
	bytes = good;
	bytes.resize(bytes.size() - 16); // and everything else says so
	set_word(bytes, 16, bytes.size());
	set_word(bytes, kSectionsAt + 3 * 16, word(bytes, kSectionsAt + 3 * 16) - 16);
	seal(bytes);
	CHECK(refusal_of(bytes).find("the cache needs more") != std::string::npos);
	Session empty(*engine, with("kivi2", 64));
	save_session(empty, path, {}); // with tokens, they would be too many for a context of 0
	bytes = read_file(path);
	const std::string ctx = "\"ctx\":64", none = "\"ctx\": 0";
	const auto digits = std::as_bytes(std::span(ctx));
	const auto at = std::search(bytes.begin(), bytes.end(), digits.begin(), digits.end());
	REQUIRE(at != bytes.end());
	std::ranges::copy(std::as_bytes(std::span(none)), at);
	seal(bytes);
	CHECK(refusal_of(bytes).find("'ctx' is 0") != std::string::npos);
	bytes = good;
	bytes.back() ^= std::byte(1);
	CHECK(refusal_of(bytes).find("the checksum of section") != std::string::npos);
	CHECK(refusal_of(good) == "none");
}

#ifndef _WIN32 // Windows has no limit on file sizes, and no fork()
TEST_CASE("T48 session file: a save that fails at any byte, or is killed, leaves the old file or the new one") {
	const TempFolder folder;
	const std::string path = (folder.path / "s.kvs").string();
	const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder.path), {}); };
	const auto engine = open_engine("cpu", kModel);
	const uint32_t vocab = engine->config().vocab;
	Session first(*engine, with("kivi2", 300)), second(*engine, with("zipcache,flush=25", 300));
	first.prefill(random_tokens(120, vocab, 5));
	second.prefill(random_tokens(150, vocab, 6));
	save_session(second, path, {});
	const std::vector<std::byte> new_file = read_file(path);
	save_session(first, path, {});
	const std::vector<std::byte> old_file = read_file(path);

	rlimit before{};
	REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
	const auto handler = std::signal(SIGXFSZ, SIG_IGN); // as the program does: writes then fail
	for (rlim_t n = 0; n < new_file.size(); n += n < 1000 ? 37 : 1777) {
		CAPTURE(n);
		const rlimit full{n, before.rlim_max};
		REQUIRE(setrlimit(RLIMIT_FSIZE, &full) == 0);
		bool refused = false;
		try {
			save_session(second, path, {});
		} catch (const Error& e) {
			refused = e.code == Code::Io &&
			          std::string_view(e.what()).find("s.kvs: writing failed") != std::string_view::npos;
		}
		REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
		REQUIRE(refused);
		REQUIRE(read_file(path) == old_file);
		REQUIRE(files() == 1);
	}
	std::signal(SIGXFSZ, handler);

	std::mt19937 rng(3);
	for (int i = 0; i < 40; ++i) {
		const pid_t child = fork();
		REQUIRE(child >= 0);
		if (child == 0)
			for (;;) save_session(first, path, {}), save_session(second, path, {});
		usleep(rng() % 30000);
		kill(child, SIGKILL);
		waitpid(child, nullptr, 0);
		const std::vector<std::byte> now = read_file(path);
		REQUIRE((now == old_file || now == new_file));
	}
	save_session(first, path, {});
	CHECK(files() == 1); // files of killed processes were removed
}
#endif

// Files that are cut, flipped, or have right checksums over wrong content. Each is refused with the file's name, or the
// session works, or a step says that its keys and values are damaged; all memory of the pool is free afterwards.
TEST_CASE("T42, T43, T46, T47 session file: mutations of files of five policies") {
	const char* asked = std::getenv("KVRUN_TEST_MUTATIONS"); // of each policy
	const int n = asked ? std::atoi(asked) : 1500;
	const TempFolder folder;
	const std::string path = (folder.path / "s.kvs").string();
	const auto engine = open_engine("cpu", kModel);
	const uint32_t vocab = engine->config().vocab;
	std::mt19937_64 rng(7);
	for (const std::string policy : {"kivi2,recent_keep=8,flush=32", "zipcache,flush=25", "mikv,recent_keep=8,flush=16",
	                                 "logquant,W=10,k.group=32", "xquant,vm=0,recent_keep=0,flush=32,k.group=32"}) {
		CAPTURE(policy);
		{
			Session s(*engine, with(policy, 200));
			s.prefill(random_tokens(90, vocab, 5));
			fed(s, random_tokens(9, vocab, 6));
			save_session(s, path, {});
		}
		const std::vector<std::byte> whole = read_file(path);
		const size_t facts = size_t(word(whole, kSectionsAt)), tokens = size_t(word(whole, kSectionsAt + 16)),
		             books = size_t(word(whole, kSectionsAt + 32)), books_at = kHeaderBytes + facts + tokens;
		size_t refused = 0, restored = 0;
		for (int i = 0; i < n; ++i) {
			std::vector<std::byte> bytes = whole;
			const int kind = int(rng() % 8);
			if (kind == 0) { // cut
				bytes.resize(rng() % whole.size());
			} else if (kind == 1) { // longer
				bytes.resize(whole.size() + 1 + rng() % 100);
			} else if (kind == 2) { // anywhere, with unchanged checksums
				bytes[rng() % bytes.size()] ^= std::byte(1 + rng() % 255);
			} else if (kind == 3) { // the header
				bytes[rng() % kHeaderBytes] = std::byte(rng());
				if (rng() % 2) seal(bytes);
			} else if (kind == 4) { // facts and tokens
				bytes[kHeaderBytes + rng() % (facts + tokens)] = std::byte(rng());
				seal(bytes);
			} else { // the books
				for (uint64_t n = 1 + rng() % 3; n > 0; --n)
					bytes[books_at + rng() % books] = rng() % 2 ? std::byte(rng()) : std::byte(rng() % 4);
				seal(bytes);
			}
			write_file(path, bytes);
			const auto names = [](const Error& e, const char* what) {
				CAPTURE(std::string(e.what()));
				if (e.code != Code::Internal && e.code != Code::Context && e.code != Code::OutOfMemory)
					CHECK(std::string_view(e.what()).find(what) != std::string_view::npos);
			};
			std::unique_ptr<Session> s;
			try {
				s = restore_session(*engine, path);
				++restored;
			} catch (const Error& e) {
				++refused;
				names(e, "s.kvs");
			}
			if (s && restored % 8 == 0) try {
					fed(*s, random_tokens(40, vocab, uint32_t(i))); // flushes, using the books
				} catch (const Error& e) { // slots that the books wrongly call written may hold any numbers
					names(e, "keys and values of the session, are damaged");
				}
			s.reset();
			if (engine->pool().used_bytes() != 0) FAIL("pages are lost");
		}
		MESSAGE(policy << ": " << refused << " refused, " << restored << " restored");
		CHECK(refused > size_t(n) / 2);
		write_file(path, whole);
		CHECK(restore_session(*engine, path)->n_tokens() == 99);
	}
}
