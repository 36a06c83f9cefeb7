// CheckedBackend: no message on a correct backend; names layer, op, shape, place and values of the first wrong result.
#include "backends/checked_backend.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/open_cpu.h"
#include "engine/core/npy.h"
#include "shared/kv_page.h"
#include "tests/support/kv_tables.h"
#include "tests/support/rig.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

using namespace kvrun;

namespace {

// A cpu backend that stores its weights in another layout (rows padded to 64 bytes) and can give wrong results.
struct Faulty : CpuBackend {
	Faulty() : CpuBackend(/*poison=*/false) {}
	const char* wrong = ""; // op whose result is damaged
	float by = 0.25f;       // added to one element; NaN sets it to NaN
	size_t element = 5;     // of out, or the word of K memory

	const char* name() const override { return "faulty"; }
	size_t weight_row_bytes(DType t, uint32_t cols) const override {
		return (CpuBackend::weight_row_bytes(t, cols) + 63) / 64 * 64;
	}
	uint32_t stored = 0x3c007800u; // what rope_store.k writes: 32768, 1
	uint32_t flip = 0;             // bits of a word of packed values that kv_pack flips

	void run(const Op& op) override {
		CpuBackend::run(op);
		if (const std::string_view name = op_name(op); name == wrong) return damage(op);
		if (const auto* rope = std::get_if<op::RopeStore>(&op); rope && std::string_view(wrong) == "rope_store.k") {
			const uint32_t word = stored;
			write(*rope->dst.k.buf, rope->dst.k.at + element * 4, std::as_bytes(std::span(&word, 1)));
		}
	}
	void damage(const Op& op) {
		if (const auto* pack = std::get_if<op::KvPack>(&op))
			return change(pack->args.v_codes, [&](uint32_t word) { return word ^ flip; });
		change(op_output(op), [&](uint32_t word) { return std::bit_cast<uint32_t>(std::bit_cast<float>(word) + by); });
	}
	template <class F> void change(const View& v, F f) {
		uint32_t word = 0;
		read(*v.buf, v.at + element * 4, std::as_writable_bytes(std::span(&word, 1)));
		wait();
		word = f(word);
		write(*v.buf, v.at + element * 4, std::as_bytes(std::span(&word, 1)));
	}
};

// Runs every op once, in the order of a model, and returns all results.
Floats every_op(Backend& b) {
	constexpr uint32_t T = 2, dim = 64, heads = 4, kv_heads = 2, D = 16;
	Random random(3);
	Rig rig(b);
	Floats all;
	const auto keep = [&](const View& v) {
		const Floats x = rig.get(v);
		all.insert(all.end(), x.begin(), x.end());
	};
	b.at_layer(3);
	const View x = rig.out(T, dim), y = rig.out(T, dim);
	b.embed(x, rig.weight(DType::Q4_0, random_weight(DType::Q4_0, 40, dim, random), 40, dim), rig.u32({7, 39}, T));
	b.rmsnorm(y, x, rig.f32(random.normals(dim), dim), 1e-5f);
	const View q = rig.out(T, heads, D), k = rig.out(T, kv_heads, D), v = rig.out(T, kv_heads, D);
	// q, k, v are rows of one tensor, as in phi3: the first row of k and v lies inside it
	const View qkv = rig.weight(DType::F16, random_weight(DType::F16, 128, dim, random), 128, dim);
	View wq = qkv, wk = qkv, wv = qkv;
	wq.shape[0] = 64, wk.shape[0] = wv.shape[0] = 32;
	wk.at += 64 * b.weight_row_bytes(DType::F16, dim), wv.at += 96 * b.weight_row_bytes(DType::F16, dim);
	const Proj qkv_projs[] = {{q, wq, rig.f32(random.normals(64), 64)}, {k, wk, {}}, {v, wv, {}}};
	b.matmul(qkv_projs, y, Epilogue::None, true);
	const uint32_t words = 2 * kv_code_words(kv_heads, D, 16, 32);
	const View k_pool = rig.u32(Words(words, 0xffffffffu), words), v_pool = rig.u32(Words(words, 0xffffffffu), words);
	Words at;
	for (uint32_t t = 0; t < T; ++t)
		for (uint32_t h = 0; h < kv_heads; ++h)
			at.push_back(kv_k_word(h, 0, 3 + t, D, 16, 32)), at.push_back(kv_v_word(h, 3 + t, 0, D, 16, 32));
	const KvDst dst{k_pool, v_pool, rig.u32(at, T, kv_heads, 2), 32};
	b.rope_store(q, k, v, {rig.f32(random.normals(T * D), T, D / 2, 2), D, true}, {}, dst);
	const View out = rig.out(T, heads, D);
	AttendGroup group{};
	group.page = 32, group.k_codes = k_pool, group.v_codes = v_pool, group.n_work = 2;
	KvRead kv{};
	kv.groups = {&group, 1};
	const KvTables tables(rig, {0, 0, 0, 0}, {0x18, 0, 0, 0});
	kv.work = upload_work<AttendWork>(rig, {tables.item(0, 0, 0, 1), tables.item(1, 1, 0, 1)}), kv.tables = tables.view;
	kv.row_parts = rig.u32({0, 1, 1, 1}, T, 2), kv.parts = rig.out(2, heads, D + 2), kv.n_kv_heads = kv_heads;
	b.attend(out, {}, q, kv);
	keep(out);
	const View pk = rig.f16(random.normals(kv_heads * 4 * D), kv_heads, 4, D),
	           pv = rig.f16(random.normals(kv_heads * 4 * D), kv_heads, 4, D);
	b.attend_prompt(out, {}, q, {pk, pv, 1}, nullptr);
	b.kv_store({pk, pv, 1}, T, dst);
	b.at_layer(4);
	View flat = out;
	flat.shape[1] = dim, flat.shape[2] = 1;
	const Proj add{x, rig.weight(DType::Q8_0, random_weight(DType::Q8_0, dim, dim, random), dim, dim), {}};
	b.matmul({&add, 1}, flat, Epilogue::Add, false);
	b.copy(y, x);
	keep(q), keep(out), keep(x), keep(y), keep(k_pool), keep(v_pool);
	return all;
}

std::unique_ptr<Backend> checked(const char* wrong, float by = 0.25f, size_t element = 5) {
	auto faulty = std::make_unique<Faulty>();
	faulty->wrong = wrong, faulty->by = by, faulty->element = element;
	return make_checked_backend(std::move(faulty), make_cpu_backend());
}

std::string message(Backend& b) {
	try {
		every_op(b);
	} catch (const Error& e) {
		CHECK(e.code == Code::Device);
		return e.what();
	}
	return "no error";
}

} // namespace

TEST_CASE("check: a correct backend passes, and its results are the ones seen") {
	const auto plain = make_cpu_backend(), check = checked("");
	const Floats a = every_op(*plain), b = every_op(*check);
	REQUIRE(a.size() == b.size());
	CHECK(std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

TEST_CASE("check: the first wrong op is named, with layer, shape, place and both values") {
	CHECK(
	    message(*checked("embed"))
	        .starts_with("layer 3: embed (2, 64) of Q4_0 (40, 64): out differs at element 5 ((0, 5, 0) of (2, 64)):"));
	CHECK(message(*checked("rmsnorm", 0.25f, 70))
	          .starts_with("layer 3: rmsnorm (2, 64): out differs at element 70 ((1, 6, 0) of (2, 64)):"));
	CHECK(message(*checked("matvec"))
	          .starts_with(
	              "layer 3: matvec x (2, 64) w F16 (64, 64) w F16 (32, 64) w F16 (32, 64): out differs at element 5"));
	CHECK(message(*checked("rope_store"))
	          .starts_with("layer 3: rope_store q (2, 4, 16) k (2, 2, 16) rotary 16 neox: q differs at element 5"));
	CHECK(message(*checked("attend", 0.25f, 20))
	          .starts_with("layer 3: attend q (2, 4, 16) kv heads 2 work 2: out differs at element 20 ((0, 1, 4) of"));
	CHECK(message(*checked("attend_prompt"))
	          .starts_with("layer 3: attend_prompt q (2, 4, 16) after 1 of (2, 4, 16): out differs"));
	CHECK(
	    message(*checked("matmul")).starts_with("layer 4: matmul x (2, 64) w Q8_0 (64, 64): out differs at element 5"));
	CHECK(message(*checked("copy", 1e-3f)).starts_with("layer 4: copy (2, 64): dst differs at element 5"));
	const std::string values = message(*checked("rmsnorm", 100.f));
	CHECK(values.find(" on faulty, ") != std::string::npos);
	CHECK(values.find(" on cpu; 1 of 128 elements outside the tolerance, max error 100") != std::string::npos);
}

TEST_CASE("check: a wrong key in the cache is found where it is written") {
	// word 0 of head 0 of token 3 is word 3 of the page; the span that is compared starts there
	CHECK(message(*checked("rope_store.k", 0, 3))
	          .starts_with("layer 3: rope_store q (2, 4, 16) k (2, 2, 16) rotary 16 neox: dst.k differs at element 0"));
	// token 20 is not in use: a stray write between the stored words is found too
	CHECK(message(*checked("rope_store.k", 0, 20)).find("dst.k differs at element 34") != std::string::npos);
}

TEST_CASE("check: a key near zero is compared by the size of all keys of the op, not of those that differ") {
	// Channels 0, 1, 8 and 9 of k are zero, and so are they after RoPE; word 0 gets other values.
	const auto store = [](uint32_t word) -> std::string {
		constexpr uint32_t D = 16, page = 32;
		auto faulty = std::make_unique<Faulty>();
		faulty->wrong = "rope_store.k", faulty->element = 0, faulty->stored = word;
		const auto b = make_checked_backend(std::move(faulty), make_cpu_backend());
		Rig rig(*b);
		Random random(5);
		Floats k = random.normals(D);
		for (const size_t c : {0, 1, 8, 9}) k[c] = 0;
		const uint32_t words = kv_code_words(1, D, 16, page);
		const View k_pool = rig.u32(Words(words, 0), words), v_pool = rig.u32(Words(words, 0), words);
		const Words at = {kv_k_word(0, 0, 0, D, 16, page), kv_v_word(0, 0, 0, D, 16, page)};
		const KvDst dst{k_pool, v_pool, rig.u32(at, 1, 1, 2), page};
		try {
			b->rope_store(rig.f32(random.normals(D), 1, 1, D), rig.f32(k, 1, 1, D), rig.f32(random.normals(D), 1, 1, D),
			              {rig.f32(random.normals(D), 1, D / 2, 2), D, true}, {}, dst);
		} catch (const Error& e) { return e.what(); }
		return "no error";
	};
	CHECK(store(0) == "no error");
	CHECK(store(0x00038003) == "no error"); // 1.8e-7 of keys of size 1: rounding of RoPE
	CHECK(store(0x04000000).find("dst.k differs at element 1") != std::string::npos); // 6e-5
}

TEST_CASE("check: packed codes may be one off where a value lies between two, and no more") {
	const auto pack = [](uint32_t flip) -> std::string {
		auto faulty = std::make_unique<Faulty>();
		faulty->wrong = "kv_pack", faulty->flip = flip, faulty->element = 3;
		const auto b = make_checked_backend(std::move(faulty), make_cpu_backend());
		Rig rig(*b);
		constexpr uint32_t kv_heads = 2, D = 16, page = 32, n = 20;
		Random random(4);
		const View k = rig.f16(random.normals(kv_heads * n * D), kv_heads, n, D);
		const uint32_t codes = kv_code_words(kv_heads, D, 4, page),
		               params = kv_token_param_words(kv_heads, D, 16, page);
		Words rows;
		for (uint32_t t = 0; t < n; ++t) rows.push_back(t);
		PackArgs a{};
		a.format.k = a.format.v = {.bits = 4, .scale = Scale::PerToken, .group = 16};
		a.page = page;
		PackWork work{};
		work.n = n, work.head = UINT32_MAX;
		a.sources = rig.u32(rows, n), a.work = upload_work<PackWork>(rig, {work});
		a.k_codes = rig.u32(Words(codes, 0), codes), a.v_codes = rig.u32(Words(codes, 0), codes);
		a.k_params = rig.u32(Words(params, 0), params), a.v_params = rig.u32(Words(params, 0), params);
		try {
			b->kv_pack({k, k, 0}, a);
		} catch (const Error& e) { return e.what(); }
		return "no error";
	};
	CHECK(pack(0) == "no error");
	CHECK(pack(0x1) == "no error"); // the last bit of one code
	CHECK(pack(0x80).starts_with(
	    "kv_pack 1 items of (2, 20, 16) K 4 bits V 4 bits: v_codes differs at element 25")); // 8 steps off
	CHECK(pack(0x11111111) != "no error"); // eight codes of 1024: not a rounding difference
}

TEST_CASE("check: a difference inside the tolerance passes, just outside it does not") {
	CHECK(message(*checked("matvec", 1e-5f)) == "no error");
	CHECK(message(*checked("matvec", 2e-2f)) != "no error");
}

TEST_CASE("check: NaN and infinity are reported, from the op or from its input") {
	CHECK(message(*checked("rmsnorm", NAN)).find("nan on faulty") != std::string::npos);
	CHECK(message(*checked("attend", INFINITY)).find("inf on faulty") != std::string::npos);
	const auto b = checked("");
	Rig rig(*b);
	Floats x(64, 1.f);
	x[9] = NAN;
	CHECK_THROWS_WITH_AS(b->rmsnorm(rig.out(1, 64), rig.f32(x, 1, 64), rig.f32(x, 64), 1e-5f),
	                     doctest::Contains("an earlier value or a weight is not finite"), Error);
}

TEST_CASE("check: what rows hold that an op does not write makes no difference, unless it reads them") {
	const auto run = [](const char* wrong, size_t element, bool adds) {
		const auto b = checked(wrong, 0.25f, element);
		Rig rig(*b);
		const View x = rig.out(4, 2, 8); // NaN
		b->stream_sum({x, 1, /*by_row=*/true}, {rig.f32(Floats(3 * 8, 1.f), 1, 3, 8)},
		              rig.f32(Floats(2 * 2, 1.f), 2, 2, 1), adds);
		const Floats got = rig.get(x);
		for (size_t i = 0; i < got.size(); ++i) CHECK(std::isnan(got[i]) == (i < 16 || i >= 48));
	};
	run("", 0, false);
	CHECK_THROWS_WITH_AS(run("stream_sum", 16, false), doctest::Contains("x differs at element 16 ((1, 0, 0)"), Error);
	CHECK_THROWS_AS(run("", 0, true), Error);
}

TEST_CASE("check: without a reference only shapes and numbers are checked") {
	auto faulty = std::make_unique<Faulty>();
	faulty->wrong = "rmsnorm";
	const auto quiet = make_checked_backend(std::move(faulty), nullptr);
	every_op(*quiet);
	auto broken = std::make_unique<Faulty>();
	broken->wrong = "rmsnorm", broken->by = NAN;
	const auto scan = make_checked_backend(std::move(broken), nullptr);
	CHECK(message(*scan).starts_with("layer 3: rmsnorm (2, 64): out element (0, 5, 0) of (2, 64) is nan"));
}

TEST_CASE("check: shapes that do not fit are refused") {
	for (const bool with_check : {false, true}) {
		const auto b = with_check ? checked("") : make_cpu_backend();
		Rig rig(*b);
		const View a = rig.out(2, 64), c = rig.out(2, 32), w = rig.f32(Floats(64), 64);
		CHECK_THROWS_AS(b->rmsnorm(c, a, w, 1e-5f), Error);
		CHECK_THROWS_AS(b->rmsnorm(a, a, rig.f32(Floats(63), 63), 1e-5f), Error);
		CHECK_THROWS_AS(b->copy(a, c), Error);
		CHECK_THROWS_AS(b->copy(a, rig.u32(Words(128), 2, 64)), Error);
		Random random(1);
		const View m = rig.weight(DType::Q8_0, random_weight(DType::Q8_0, 32, 64, random), 32, 64);
		const Proj narrow{a, m, {}}, fits{c, m, {}};
		CHECK_THROWS_AS(b->matmul({&narrow, 1}, a, Epilogue::None, true), Error);
		CHECK_THROWS_AS(b->matmul({&fits, 1}, c, Epilogue::None, true), Error);
		CHECK_THROWS_AS(b->matmul({&fits, 1}, a, Epilogue::SwiGLU, true), Error);
		CHECK_THROWS_AS(b->matmul({}, a, Epilogue::None, true), Error);
		b->matmul({&fits, 1}, rig.f32(Floats(128), 2, 64), Epilogue::None, true);
		CHECK_THROWS_AS(b->embed(a, m, rig.u32({0, 32}, 2)), Error); // the table has 32 rows
		CHECK_THROWS_AS(b->write(*w.buf, w.buf->bytes() - 2, std::vector<std::byte>(4)), Error);
	}
}

TEST_CASE("check: what does not fit is named with its shape and the shape that is expected") {
	const auto b = make_cpu_backend();
	Rig rig(*b);
	Random random(1);
	const View x = rig.out(2, 64), w = rig.f32(Floats(64), 64), narrow = rig.f32(Floats(63), 63);
	const View m = rig.weight(DType::Q8_0, random_weight(DType::Q8_0, 32, 64, random), 32, 64);
	const View words = rig.u32(Words(128), 2, 64);
	const auto refused = [&](const char* text, const auto& f) { CHECK_THROWS_WITH_AS(f(), text, Error); };
	refused("rmsnorm: w is F32 (63); expected F32 (64)", [&] { b->rmsnorm(x, x, narrow, 1e-5f); });
	refused("rmsnorm: x is missing", [&] { b->rmsnorm(x, {}, w, 1e-5f); });
	refused("rmsnorm: out is U32 (2, 64); expected F32 (2, 64)", [&] { b->rmsnorm(words, x, w, 1e-5f); });
	refused("layer_norm: b is F32 (63); expected F32 (64)", [&] { b->layer_norm(x, x, w, narrow, 1e-5f); });
	b->layer_norm(x, x, w, {}, 1e-5f);
	refused("layer_norm: w is F32 (63); expected F32 (64)", [&] { b->layer_norm(x, x, narrow, {}, 1e-5f); });
	const View streams = rig.f32(Floats(2 * 3 * 8), 2, 3, 8), sums = rig.f32(Floats(12), 3, 2, 2);
	b->stream_sum({streams}, {streams}, sums);
	refused("stream_sum: w is F32 (3, 2, 2); expected F32 (3, 3, 2)", [&] {
		b->stream_sum({rig.out(3, 3, 8), 0, true}, {streams}, sums);
	});
	CHECK_THROWS_AS(b->stream_sum({streams, 0, true}, {streams}, sums), Error); // 2 rows of 3 streams
	CHECK_THROWS_AS(b->stream_sum({streams, 1}, {streams}, sums), Error);
	CHECK_THROWS_AS(b->stream_sum({rig.out(3, 2, 8), 1, true}, {streams}, sums), Error);
	CHECK_THROWS_AS(b->stream_mix(rig.out(1, 8), rig.out(1, 5, 8), rig.out(1, 5, 8)), Error); // too many streams
	refused("stream_gate: value is F32 (2, 64); expected F32 (3, 8)",
	        [&] { b->stream_gate(rig.out(3, 2, 8), rig.out(3, 2, 8), rig.out(3, 2, 8), x); });
	const View keys = rig.u32(Words(8), 8), item = rig.u32(Words(INDEX_WORDS), 1, INDEX_WORDS);
	b->index_score(rig.f32(Floats(12), 2, 6), rig.out(2, 3, 8), {}, keys, item); // an item without keys
	refused("index_score: weights is F32 (2, 64); expected F32 (2, 3)",
	        [&] { b->index_score(rig.out(2, 6), rig.out(2, 3, 8), x, keys, item); });
	CHECK_THROWS_AS(b->index_score(rig.out(2, 6), rig.out(2, 3, 12), {}, keys, item), Error);
	CHECK_THROWS_AS(b->index_score(rig.out(2, 6), rig.out(2, 3, 264), {}, keys, item), Error);
	for (const auto& [n_heads, pool] : {std::pair{3u, 4u}, {1u, 3u}, {1u, 512u}}) // pools of keys
		CHECK_THROWS_AS(b->index_score(rig.out(2, 6), rig.out(2, n_heads, 8), {}, keys, item, pool), Error);
	const View bits = rig.u32(Words(4), 2, 2), tokens = rig.u32(Words(2), 2);
	b->index_pick(bits, rig.f32(Floats(12), 2, 6), tokens, 16, 1);
	for (const auto& [block, most] : {std::pair{0u, 1u}, {12u, 1u}, {48u, 1u}, {16u, 0u}})
		CHECK_THROWS_AS(b->index_pick(bits, rig.f32(Floats(12), 2, 6), tokens, block, most), Error);
	refused("index_live: work is U32 (1, 7); expected U32 (any, 8)",
	        [&] { b->index_live(keys, bits, rig.u32(Words(7), 1, 7)); });
	const Proj proj{x, m, {}};
	refused("matvec: out is F32 (2, 64); expected F32 (2, 32)", [&] {
		b->matmul({&proj, 1}, x, Epilogue::None, true);
	});
	refused("embed: table is U32 (2, 64); expected rows of whole blocks, (2, 64)", [&] { b->embed(x, words, words); });
	refused("scatter: list is U32 (2, 64); expected U32 (any, 2)", [&] { b->scatter(words, words); });
}

TEST_CASE("check: a dump writes inputs and outputs of the chosen op and layer") {
	const std::filesystem::path dir =
	    std::filesystem::temp_directory_path() / fmt::format("kvrun-dump-{}", uintptr_t(&every_op) ^ uintptr_t(&dir));
	const auto files = [&] {
		std::vector<std::string> r;
		for (const auto& f : std::filesystem::directory_iterator(dir)) r.push_back(f.path().filename().string());
		std::sort(r.begin(), r.end());
		return r;
	};
	const auto dumping = [](const std::string& what) {
		return make_checked_backend(make_cpu_backend(), make_cpu_backend(), what);
	};
	every_op(*dumping(dir.string() + ":rmsnorm:3"));
	CHECK(files() ==
	      std::vector<std::string>{"000001_L3_rmsnorm_out.npy", "000001_L3_rmsnorm_w.npy", "000001_L3_rmsnorm_x.npy"});
	const NpyArray out = npy_read(dir / "000001_L3_rmsnorm_out.npy");
	CHECK(out.shape == std::vector<uint64_t>{2, 64});
	CHECK(std::isfinite(out.as<float>()[127]));
	std::filesystem::remove_all(dir);
	every_op(*dumping(dir.string() + ":rmsnorm:7"));
	CHECK(files().empty());
	every_op(*dumping(dir.string()));
	CHECK(files().size() > 20);
	std::filesystem::remove_all(dir);
}
