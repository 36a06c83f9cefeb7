// Accepted values of --kv: names, options, defaults of the papers, and one line for every invalid value.
#include "engine/core/error.h"
#include "engine/kv_host/plan.h"
#include <doctest/doctest.h>
#include <set>

using namespace kvrun;

namespace {

// The message of a refusal; it must be one line.
std::string refused(const char* text) {
	try {
		(void)parse_policy(text);
	} catch (const Error& e) {
		CHECK(e.code == Code::Invalid);
		CHECK(std::string(e.what()).find('\n') == std::string::npos);
		return e.what();
	}
	return "accepted";
}
void check_refused(const char* text, std::initializer_list<const char*> parts) {
	const std::string what = refused(text);
	for (const char* part : parts)
		CHECK_MESSAGE(what.find(part) != std::string::npos, text << " -> " << what << " lacks " << part);
}

} // namespace

TEST_CASE("policy: the table has the methods and baselines, each with its paper's parameters") {
	std::set<std::string> names;
	for (const KvPolicy& p : all_policies()) {
		CHECK(names.insert(p.name).second);
		CHECK(!p.source.empty());
		CHECK(!p.summary.empty());
		CHECK(parse_policy(p.name).text == p.name); // every default passes its own checks
	}
	for (const char* n : {"fp16", "rtn2", "rtn4", "rtn8", "kivi1", "kivi2", "kivi4", "specache1", "specache2",
	                      "logquant", "xquant", "asymkv", "streaming", "zipcache", "mikv", "h2o"})
		CHECK_MESSAGE(names.count(n), n);
	const KvPolicy kivi = parse_policy("kivi2");
	CHECK(kivi.regular.k == Quant{.bits = 2, .scale = Scale::PerChannel, .group = 32});
	CHECK(kivi.regular.v == Quant{.bits = 2, .scale = Scale::PerToken, .group = 32});
	CHECK(kivi.select.recent_keep + kivi.select.flush == 128);
	const KvPolicy log = parse_policy("logquant");
	CHECK(log.regular.k.group == 64);
	CHECK(log.select.recent_keep == 42);
	CHECK(log.select.flush == 84);
	const KvPolicy zip = parse_policy("zipcache");
	CHECK(zip.salient.k.bits == 4);
	CHECK(zip.regular.v.bits == 2);
	CHECK(zip.regular.v.prescale == Prescale::SqrtMax);
	CHECK(zip.select.ratio == 0.6);
	CHECK(zip.select.flush == 100);
	CHECK(zip.select.probe_recent == 0.05);
	CHECK(zip.select.probe_random == 0.05);
	const KvPolicy mikv = parse_policy("mikv");
	CHECK(mikv.salient.k.bits == 16);
	CHECK(mikv.regular.k.prescale == Prescale::Balance);
	CHECK(mikv.regular.v.prescale == Prescale::None);
	CHECK(mikv.select.ratio == 0.2);
	CHECK(mikv.select.per_head);
	const KvPolicy x = parse_policy("xquant");
	CHECK(x.regular.k.bits == 1);
	CHECK(x.regular.k.eta == doctest::Approx(1.0 / 6).epsilon(1e-12));
	CHECK(x.share == Share{}); // only if requested
	CHECK(x.regular.k.group == 32);
	CHECK(x.select.recent_keep + x.select.flush == 128);
	CHECK(parse_policy("specache1").regular.k.param_bits == 8);
	CHECK(parse_policy("specache1").regular.v.group == 64);
	REQUIRE(x.layers.size() == 2);
	CHECK(x.layers[0].last == 30);
	CHECK(x.layers[1].last == 2);
	CHECK(x.layers[0].quant.eta == 0.045);
}

TEST_CASE("policy: the strings of the golden cases mean what the cases say") {
	KvPolicy p = parse_policy("kivi1,eta=0.25,group=32,recent_keep=32,flush=32");
	CHECK(p.regular.k.eta == 0.25);
	CHECK(p.regular.v.eta == 0.25);
	CHECK(p.select.recent_keep == 32);
	p = parse_policy("xquant,kq=0,vq=0,km=0,vm=0,eta1=0.16666667,group=32,recent_keep=96,flush=32");
	CHECK(p.regular.k.bits == 1);
	CHECK(p.regular.k.eta == 0.16666667);
	CHECK(p.layers[0].last == 0);
	CHECK(p.share.k_first == 0);
	CHECK(p.depth == 0);
	p = parse_policy("logquant,bits=2,group=32,W=32");
	CHECK(p.regular.k.group == 32);
	CHECK(p.select.recent_keep == 32);
	CHECK(p.select.flush == 64);
	p = parse_policy("zipcache,ratio=0.6,recent_keep=0");
	CHECK(p.select.recent_keep == 0);
	p = parse_policy("mikv,ratio=0.2,group=32,recent_keep=0,per_head=off");
	CHECK_FALSE(p.select.per_head);
	CHECK(p.regular.k.group == 32);
	CHECK(p.regular.k.prescale == Prescale::Balance);
	p = parse_policy("streaming,sinks=4,recent=96");
	CHECK(p.select.recent_keep + p.select.flush == 96);
	CHECK(p.select.sinks == 4);
}

TEST_CASE("policy: options reach the tier and side they name") {
	KvPolicy p = parse_policy("mikv,salient.bits=4");
	CHECK(p.salient.k.bits == 4);
	CHECK(p.salient.v.bits == 4);
	CHECK(p.regular.k.bits == 2);
	p = parse_policy("kivi2,regular.k.bits=4");
	CHECK(p.regular.k.bits == 4);
	CHECK(p.regular.v.bits == 2);
	p = parse_policy("kivi2,v.group=head,bits=8");
	CHECK(p.regular.v.group == kGroupHead);
	CHECK(p.regular.k.group == 32);
	CHECK(p.regular.k.bits == 8);
	p = parse_policy("zipcache,v.prescale=none,v.group=128"); // per token, as an ablation: both tiers
	CHECK(p.salient.v.prescale == Prescale::None);
	CHECK(p.regular.v.prescale == Prescale::None);
	CHECK(p.salient.v.group == 128);
	p = parse_policy("mikv,balance=off");
	CHECK(p.regular.k.prescale == Prescale::None);
	p = parse_policy("zipcache,score=accumulated,probe=all");
	CHECK(p.select.rank == Rank::ScoreSum);
	CHECK(p.select.probe_recent == 1);
	CHECK(p.select.probe_random == 0);
	p = parse_policy("zipcache,probe=0.2");
	CHECK(p.select.probe_recent == 0.1);
	CHECK(p.select.probe_random == 0.1);
	CHECK(parse_policy("zipcache,probe=random").select.probe_recent == 0);
	CHECK(parse_policy("zipcache,probe=recent").select.probe_random == 0);
	CHECK(parse_policy("zipcache,probe.recent=0.3,probe.random=0").select.probe_recent == 0.3);
	CHECK(parse_policy("zipcache,ratio=80%").select.ratio == doctest::Approx(0.8));
	p = parse_policy("kivi2,regular.k.bits@0-3=4,v.bits@5=8");
	REQUIRE(p.layers.size() == 2);
	CHECK(p.layers[0].first == 0);
	CHECK(p.layers[0].last == 4);
	CHECK(p.layers[0].is_k);
	CHECK(p.layers[0].quant.bits == 4);
	CHECK(p.layers[1].first == 5);
	CHECK(p.layers[1].last == 6);
	CHECK(p.layers[1].quant.group == 32);
	p = parse_policy("xquant,kq=31,vq=0,km=4,vm=2,eta1=0.3,eta2=0.09,group=128");
	CHECK(p.regular.k.eta == 0.3);
	CHECK(p.layers[0].quant.eta == 0.09);
	CHECK(p.layers[0].quant.group == 128);
	CHECK(p.regular.k.group == 128);
	CHECK(p.layers[0].last == 31);
	CHECK(p.depth == 0);
	p = parse_policy("asymkv12/3");
	CHECK(p.name == "asymkv");
	CHECK(p.layers[0].last == 12);
	CHECK(p.layers[1].last == 3);
	CHECK_FALSE(p.layers[1].is_k);
	CHECK(p.layers[1].quant.bits == 2);
	CHECK(parse_policy("asymkv-32/0").layers[0].last == 32);
}

TEST_CASE("policy: every option takes effect, whatever the entry's own layers say, or is refused by name") {
	const KvShape shape{4, 2, 64};
	const auto keys = [&](const char* text, uint32_t layer) {
		return make_plan(parse_policy(text), shape).layers.at(layer).tier[int(Tier::Regular)].fmt.k;
	};
	CHECK(keys("kivi2,k.bits@3-3=4,k.eta@3-3=0", 3).bits == 4); // the second option adds to the first
	CHECK(keys("kivi2,k.eta@3-3=0.1,k.bits@3=4", 3).eta == 0.1);
	CHECK(keys("kivi2,k.bits@3=4,k.group@3=32", 2).bits == 2);
	CHECK(keys("asymkv,k.bits=4", 0).bits == 4); // its own rule has 2 bits in all layers
	CHECK(keys("asymkv,eta1=0.1", 0).eta == 0);
	CHECK(keys("kivi2,k.bits@1=1,eta1=0.2", 1).eta == 0.2);
	CHECK(keys("kivi2,k.bits@1=1,k.eta@1=0.3,eta1=0.2", 1).eta == 0.3);
	CHECK(keys("xquant,k.bits@3=4", 3).bits == 4); // given layer numbers do not scale with the depth
	CHECK(keys("xquant,k.bits@3=4", 2).bits == 2);
	check_refused("asymkv2/0,k.bits=4", {"kq", "stores keys at 4 bits"});
	check_refused("kivi2,eta1=0.2", {"eta1 has no effect", "1 bit"});
	check_refused("kivi2,probe=0.1", {"probe has no effect", "score=sum"});
	check_refused("kivi2,key_length=small", {"key_length has no effect"});
	check_refused("mikv,score=key_length,probe=0.1", {"probe has no effect", "one row"});
	check_refused("mikv,score=key_length,key_length=off", {"large or small"});
	check_refused("mikv,key_length=long", {"large, small or off"});
	CHECK(parse_policy("mikv,score=key_length").select.saliency() == Saliency{false, KeyLength::Large});
	CHECK(parse_policy("mikv,score=key_length,key_length=small").select.saliency() ==
	      Saliency{false, KeyLength::Small});
	CHECK(parse_policy("zipcache,key_length=large").select.saliency() == Saliency{true, KeyLength::Large});
	// the options' former names are still accepted
	CHECK(parse_policy("mikv,score=norm,key_norm=small").select ==
	      parse_policy("mikv,score=key_length,key_length=small").select);
	CHECK(parse_policy("kivi2,v.norm=none").regular == parse_policy("kivi2,v.prescale=none").regular);
	CHECK(parse_policy("kivi2,k.scale@1=norm,k.group=64").layers ==
	      parse_policy("kivi2,k.scale@1=codebook,k.group=64").layers);
	CHECK(parse_policy("zipcache").select.saliency() == Saliency{});
	CHECK(parse_policy("specache2,fetch_mode=sync").fetch_sync);
	CHECK_FALSE(parse_policy("specache2,fetch_mode=sync,fetch=0").fetch_sync); // shares steps with other policies
	check_refused("kivi2,stride=4", {"stride has no effect", "km or vm"});
	check_refused("fp16,eta=0.1", {"eta has no effect", "packed"});
	check_refused("streaming,group=32", {"group has no effect"});
	check_refused("rtn4,k.bits=16,k.group=64", {"k.group has no effect"});
}

TEST_CASE("policy: bits of keys and values follow a name, and calibrate themselves") {
	KvPolicy p = parse_policy("turbo3/1");
	CHECK(p.regular.k == Quant{.bits = 3,
	                           .scale = Scale::Codebook,
	                           .group = 128,
	                           .eta = kEtaByBits,
	                           .rotate = true,
	                           .mean = true,
	                           .param_bits = 8});
	const Format uniform = make_plan(parse_policy("turbo2/1,k.scale=channel,v.scale=token"), {2, 2, 64})
	                           .layers[0]
	                           .tier[int(Tier::Regular)]
	                           .fmt;
	CHECK(uniform.k.eta == 0.045);
	CHECK(uniform.v.eta == 0.25);
	CHECK(p.regular.v.bits == 1);
	CHECK(parse_policy("turbo2").regular.v.bits == 2);
	CHECK(parse_policy("turbo").regular.k.bits == 3);
	for (const char* own : {"turbo", "turbo4/3", "mixed", "mixed2/1"}) CHECK(parse_policy(own).select.sinks == 4);
	CHECK(parse_policy("turbo2,sinks=0").select.sinks == 0);
	for (const char* paper : {"kivi2", "zipcache", "xquant"}) CHECK(parse_policy(paper).select.sinks == 0);
	p = parse_policy("mixed4/1");
	const Format f = make_plan(p, {2, 2, 64}).layers[0].tier[int(Tier::Regular)].fmt;
	CHECK(f.k.bits == 4);
	CHECK(f.k.eta == 0);
	CHECK(f.v.eta == 0.25);
	CHECK(make_plan(parse_policy("mixed"), {2, 2, 64}).layers[0].tier[int(Tier::Regular)].fmt.v.eta == 0.045);
	CHECK(parse_policy("mixed4/1,eta1=0.1").regular.v.eta == 0.1);
	CHECK(parse_policy("kivi1").regular.v.eta == 0); // as in the paper
	CHECK(parse_policy("kivi2,bits=3").regular.v.bits == 3);
	check_refused("turbo5", {"k.bits is '5'"});
	check_refused("turbo3/", {"v.bits is ''"});
	check_refused("turbo8,param_bits=16", {"param_bits has no effect", "1 to 4 bits"});
	check_refused("turbo8/4,k.rotate=off", {"k.rotate has no effect"});
	check_refused("turbo4/8,mean=off,bits=8", {"mean has no effect"});
	check_refused("turbo,eta=0.1", {"codebook"});
	check_refused("turbo,v.mean=on", {"mean=on is for keys"});
	check_refused("turbo,group=all", {"32, 64 or 128 tokens"});
	check_refused("turbo,param_bits=4", {"16 (f16), or 8"});
	check_refused("turbo,prescale=balance", {"prescale=none"});
	CHECK(!parse_policy("turbo,v.scale=token,v.group=32").regular.v.rotate); // the codebook's options are reset
	check_refused("turbo,v.rotate=on,v.scale=token", {"v.rotate has no effect"});
	check_refused("rtn4,param_bits=8", {"scale=channel or scale=codebook"});
	check_refused("zipcache,param_bits=8", {"relative to a page", "prescale=none"});
	check_refused("kivi2,k.group=all,k.param_bits=8", {"relative to a page"});
	check_refused("kivi2,bits=8,param_bits=8", {"codes of 8 bits", "at most 4 bits"});
	CHECK(parse_policy("kivi2,param_bits=8").regular.v.param_bits == 8);
	check_refused("kivi2,rotate=on", {"rotate=on is for scale=codebook"});
	check_refused("kivi2,mean=on", {"mean=on is for keys with scale=codebook"});
	CHECK_THROWS_AS(make_plan(parse_policy("turbo,k.group=64"), {2, 2, 64}), Error); // values have pages of 128
	CHECK_THROWS_AS(make_plan(parse_policy("turbo,km=0"), {2, 2, 64}), Error);
}

TEST_CASE("policy: a wider group leaves the size of the window alone") {
	KvPolicy p = parse_policy("kivi2,group=64");
	CHECK(p.select.recent_keep == 64);
	CHECK(p.select.flush == 64);
	p = parse_policy("kivi2,group=128");
	CHECK(p.select.recent_keep == 0);
	CHECK(p.select.flush == 128);
	p = parse_policy("kivi2,group=64,recent_keep=96,flush=32"); // unless it is given
	CHECK(p.select.recent_keep == 96);
	CHECK(p.select.flush == 32);
	p = parse_policy("kivi2,recent=256");
	CHECK(p.select.recent_keep == 224);
	p = parse_policy("logquant,recent=192"); // R of the paper: W = R / 3
	CHECK(p.select.recent_keep == 64);
	CHECK(p.select.flush == 128);
}

TEST_CASE("policy: short names and types given apart") {
	CHECK(parse_policy("f16").name == "fp16");
	CHECK(parse_policy("q8").name == "rtn8");
	CHECK(parse_policy("q4_0,flush=1").name == "rtn4");
	CHECK(parse_policy(" kivi2 ").text == "kivi2");
	CHECK(policy_from_types("f16", "f16").name == "fp16");
	CHECK(policy_from_types("q8_0", "q8").name == "rtn8");
	const KvPolicy p = policy_from_types("q8", "q4_0");
	CHECK(p.regular.k.bits == 8);
	CHECK(p.regular.v.bits == 4);
	CHECK(parse_policy(p.text).regular.k == p.regular.k); // its text is a valid value
	std::string notice;
	CHECK(policy_from_types("f16", "q4", &notice).regular.k.bits == 8); // llama.cpp's users give one of them
	CHECK(notice == "keys are stored at 8 bits: keys and values are packed together");
	CHECK(policy_from_types("q8_0", "", &notice).text == "rtn8");
	CHECK(notice == "values are stored at 8 bits: keys and values are packed together");
	CHECK(policy_from_types("q4_0", "f16").text == "rtn4,k.bits=4,v.bits=8");
	CHECK(policy_from_types("q5_1", "iq4_nl", &notice).text == "rtn4,k.bits=8,v.bits=4");
	CHECK(notice == "-ctk q5_1 is stored as 8 bits; -ctv iq4_nl is stored as 4 bits");
	CHECK(policy_from_types("bf16", "f32", &notice).text == "fp16");
	CHECK(notice == "-ctk bf16 is stored as f16; -ctv f32 is stored as f16");
	CHECK(policy_from_types("q8_0", "q4_1", &notice).text == "rtn4,k.bits=8,v.bits=4");
	CHECK(notice.empty());
	CHECK(policy_from_types("q1", "q1").regular.v.bits == 1);
	CHECK_THROWS_WITH_AS(policy_from_types("q3_k", "f16"),
	                     doctest::Contains("-ctk is 'q3_k': possible are f16, q8_0, q4_0"), Error);
	CHECK_THROWS_WITH_AS(policy_from_types("f16", "tq1"), doctest::Contains("-ctv is 'tq1'"), Error);
}

TEST_CASE("policy: lists of policies; options belong to the policy before them") {
	const std::vector<KvPolicy> l = parse_policies("fp16,kivi2,group=64,recent_keep=64,logquant,W=64,q4");
	REQUIRE(l.size() == 4);
	CHECK(l[1].text == "kivi2,group=64,recent_keep=64");
	CHECK(l[2].select.recent_keep == 64);
	CHECK(l[3].name == "rtn4");
	CHECK_THROWS_AS(parse_policies(""), Error);
	CHECK_THROWS_AS(parse_policies("fp16,,kivi2"), Error);
	CHECK_THROWS_AS(parse_policies("group=64"), Error);
}

TEST_CASE("policy: what cannot be is refused in one line that says what can") {
	check_refused("kivi3", {"no KV policy 'kivi3'", "kivi4", "kivi2", "kivi1"});
	check_refused("rtn3", {"rtn8", "rtn4", "rtn2"});
	check_refused("", {"no KV policy ''", "fp16"});
	check_refused("zipcahe", {"did you mean zipcache?"});
	check_refused("h20", {"h2o"});
	check_refused("nonsense", {"Available are fp16", "mikv"});
	check_refused("asymkv32", {"asymkvA/B"});
	check_refused("asymkv3x/1", {"expected a whole number"});
	check_refused("kivi2,bits=5", {"bits is '5'", "1, 2, 3, 4, 8, 16, and 0"});
	check_refused("kivi2,bits=32", {"1, 2, 3, 4, 8, 16, and 0"});
	check_refused("kivi2,bits=x", {"bits is 'x'", "1, 2, 3, 4, 8, 16, and 0"});
	check_refused("kivi2,v.bits=02", {"v.bits is '02'"});
	check_refused("kivi2,group=48", {"group is '48'", "32, 64 or 128"});
	check_refused("kivi2,group=0", {"group is '0'"});
	check_refused("kivi2,group=head", {"32, 64 or 128 tokens, or all"}); // keys per channel have no such group
	check_refused("rtn4,group=64k", {"group is '64k'", "32, 64 or 128", "half, head, all"});
	check_refused("rtn4,group=70000", {"at most 32768"});
	check_refused("rtn4,group=-1", {"group is '-1'"});
	check_refused("kivi2;group=64", {"after commas, as in NAME,group=64"});
	check_refused("kivi2 group=64", {"after commas"});
	check_refused("kivi2,=4", {"'=4' has no key"});
	check_refused("foo", {"no KV policy 'foo'. Available are fp16"});
	check_refused("kivi2,recent_keep=x", {"recent_keep is 'x'", "whole number from 0"});
	check_refused("kivi2,recent_keep=-1", {"recent_keep is '-1'"});
	check_refused("kivi2,recent=16", {"recent is 16, less than flush = 32"});
	check_refused("streaming,sinks=-1", {"sinks is '-1'", "whole number"});
	check_refused("h2o,budget=0", {"ratio above 0", "budget in tokens"});
	check_refused("zipcache,ratio=-0.1", {"0 to 1"});
	check_refused("zipcache,ratio=abc", {"expected a number from 0 to 1"});
	check_refused("zipcache,probe=2", {"0 to 1"});
	check_refused("logquant,W=99999999999", {"whole number from 1"});
	check_refused("xquant,stride=0", {"from 2"});
	check_refused("asymkv1/2/3", {"second number is '2/3'"});
	check_refused("mikv,balance=yes", {"on or off"});
	check_refused("kivi2,eta=0.6", {"0 to below 0.5"});
	check_refused("kivi2,bits@a-b=4", {"'a'"});
	check_refused("kivi2,grup=64", {"no option 'grup'", "did you mean group?"});
	check_refused("kivi2,recentkeep=64", {"did you mean recent_keep?"});
	check_refused("kivi2,zzzzzz=64", {"kvrun plan --help"});
	check_refused("kivi2,salient.k.bit=4", {"salient.k.bits"});
	check_refused("kivi2,group", {"not key=value"});
	check_refused("kivi2,group=", {"has no value"});
	check_refused("kivi2,", {"not key=value"});
	check_refused("kivi2,flush=0", {"from 1"});
	check_refused("kivi2,flush=-1", {"'-1'"});
	check_refused("kivi2,flush=1e3", {"'1e3'"});
	check_refused("kivi2,flush=99999999999999999999", {"flush is"});
	check_refused("kivi2,eta=0.5", {"below 0.5"});
	check_refused("kivi2,eta=nan", {"eta is"});
	check_refused("kivi2,eta=x", {"expected a number from 0"});
	check_refused("zipcache,ratio=1.5", {"ratio is 1.5", "0 to 1"});
	check_refused("zipcache,probe=0", {"without scored rows"});
	check_refused("zipcache,probe=often", {"all, recent, random, hybrid"});
	check_refused("zipcache,probe.recent=0.8,probe.random=0.8", {"more than all rows"});
	check_refused("zipcache,score=max", {"sum (accumulated), mean (normalised)"});
	check_refused("kivi2,ratio=0.5", {"score=sum, mean or key_length"});
	check_refused("kivi2,per_head=on", {"per_head=on needs score"});
	check_refused("mikv,per_head=maybe", {"on or off"});
	check_refused("mikv,ratio=0", {"ratio above 0, as 0.2, or budget"});
	check_refused("mikv,salient.bits=0", {"salient tokens are stored"});
	check_refused("mikv,salient.bits=4,budget=64", {"budget caps"});
	check_refused("kivi2,k.bits=0", {"K and V together"});
	check_refused("kivi2,v.scale=channel", {"only keys can be per channel"});
	check_refused("kivi2,v.prescale=balance", {"the balancer is for keys"});
	check_refused("kivi2,k.prescale=sqrtmax", {"sqrtmax is for values"});
	check_refused("kivi2,prescale=loud", {"none, sqrtmax"});
	check_refused("kivi2,k.scale=row", {"channel or token"});
	check_refused("kivi2,kq=4", {"2 and 1 bit", "start from kivi1, specache1, xquant, asymkv"});
	check_refused("kivi2,W=32", {"score=log", "kivi2 has recent_keep"});
	check_refused("logquant,W=0", {"from 1"});
	check_refused("logquant,flush=32", {"flush = 2 * recent_keep"});
	check_refused("logquant,recent=2", {"at least 3"});
	check_refused("streaming,recent=5,flush=8", {"less than flush = 8"});
	check_refused("kivi2,salient.bits=4", {"only ranking by score"});
	check_refused("kivi2,regular.flush@0-3=4", {"cannot differ by layer"});
	check_refused("kivi2,bits@3-1=4", {"from 3"});
	check_refused("kivi2,page=48", {"32, 64 or 128"});
	check_refused("xquant,stride=1", {"from 2"});
}

TEST_CASE("policy: text of any kind is read or refused, nothing else") {
	const std::string alphabet = "kivi2,group=64@-/.%qW_0123456789 \n\x01\xff";
	uint32_t x = 12345;
	for (int i = 0; i < 20000; ++i) {
		std::string text = i % 2 ? "kivi2," : "";
		x = x * 1664525 + 1013904223;
		for (uint32_t n = (x >> 8) % 24; n-- > 0;) {
			x = x * 1664525 + 1013904223;
			text += alphabet[(x >> 16) % alphabet.size()];
		}
		try {
			(void)parse_policies(text);
		} catch (const Error& e) { REQUIRE(e.code == Code::Invalid); }
	}
}

TEST_CASE("policy: the options list every key, each with a meaning") {
	std::set<std::string> keys;
	for (const auto& [key, meaning] : policy_options()) {
		CHECK(keys.insert(key).second);
		CHECK(!meaning.empty());
	}
	for (const char* key : {"recent_keep", "flush", "recent", "sinks", "W", "eta1", "kq", "vm", "ratio", "probe",
	                        "per_head", "balance", "score", "bits", "group"})
		CHECK_MESSAGE(keys.count(key), key);
}

TEST_CASE("policy: short names stand for entries of the table, and no entry is hidden by one") {
	for (const auto& [alias, means] : {std::pair{"f16", "fp16"}, {"q8_0", "rtn8"}, {"q8", "rtn8"}, {"q4", "rtn4"}}) {
		REQUIRE(find_policy(alias));
		CHECK(find_policy(alias)->name == means);
		CHECK(parse_policy(alias).name == means);
	}
	for (const KvPolicy& p : all_policies()) CHECK(find_policy(p.name) == &p);
	CHECK(find_policy("nonsense") == nullptr);
	for (const KvPolicy& p : all_policies()) // "NAMEa/b" only for policies that allow it
		if (!p.takes_layers && !p.takes_bits) check_refused((p.name + "3/1").c_str(), {"no KV policy"});
}
