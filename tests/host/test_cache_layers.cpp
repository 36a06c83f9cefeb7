// Layers of different sizes, layers that share keys and values: their description, and which cache holds their tokens.
#include "engine/run/cache_layers.h"
#include "models/families.h"
#include <doctest/doctest.h>

using namespace kvrun;

TEST_CASE("cache layers: layers that share keys and values, and which cache has them") {
	Config c;
	c.n_layers = 8, c.n_heads = 4, c.n_kv_heads = 1, c.head_dim = 16, c.hidden_dim = 32;
	c.ropes = {{.dim = 16, .theta = 1e6f}};
	const Family f{.arch = "test", .second_rope = SecondRope::OwnInWindow, .window_period = 2};
	LayerSizes sizes;
	sizes.n_kv_heads = {2, 1, 2, 1, 2, 1, 2, 1};
	sizes.window_head_dim = sizes.window_rope_dim = 8;
	sizes.shared_kv = 4;
	describe_layers(c, f, {}, {.tokens = 5, .layers = {}, .theta = 1e4f}, sizes);
	CHECK(c.ropes.size() == 2);
	CHECK(c.ropes[1].dim == 8);
	CHECK(rope_width(c) == 24);
	CHECK(widest(c).q == 64);
	CHECK(widest(c).kv == 16);
	CHECK(kv_f16_bytes(c) == 4 * 4 * 16);
	const uint32_t from[] = {0, 1, 2, 3, 2, 3, 2, 3};
	for (uint32_t l = 0; l < 8; ++l) CHECK(c.layers[l].kv_layer == from[l]);
	const CacheLayers layers(c);
	CHECK(layers.shares());
	CHECK(layers.last_own() == 3);
	const uint32_t last[] = {0, 1, 6, 7};
	for (uint32_t l = 0; l < 4; ++l) CHECK(layers.last_reader(l) == last[l]);
	for (uint32_t l = 0; l < 8; ++l) {
		CHECK(layers[l].window == (l % 2 == 0));
		CHECK(layers[l].index == from[l] / 2);
	}
	CHECK(layers.main_shape().n_layers == 2);
	CHECK(layers.main_shape().n_kv_heads == 1);
	CHECK(layers.main_shape().head_dim == 16);
	CHECK(layers.window_shape().n_layers == 2);
	CHECK(layers.window_shape().n_kv_heads == 2);
	CHECK(layers.window_shape().head_dim == 8);
	CHECK(layers.n_heads(true) == 4);
}
