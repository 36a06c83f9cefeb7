// Prints llama.cpp's logits of a prompt and of a greedy continuation; built by make_peer_golden.sh against the peer's
// libllama. peer_eval MODEL N_CTX KV_TYPE(f16|f32|q8_0|q4_0) N_PREDICT [KEY=INT] < token ids, separated by white space
// LORA, LORA_SCALE in the environment: an adapter and its scale.
// stdout: i32 n_vocab, i32 rows, then rows x n_vocab f32: one row per prompt position, one per generated token except
// the last. KEY=INT replaces an integer of the file's metadata. Runs on the CPU with the given KV type.
#include <llama.h>
#include <ggml-backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 4096

static void quiet(enum ggml_log_level level, const char* text, void* user) {
	(void)user;
	if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int argmax(const float* x, int n) {
	int best = 0;
	for (int i = 1; i < n; ++i)
		if (x[i] > x[best]) best = i;
	return best;
}

static enum ggml_type kv_type(const char* name) {
	const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};
	for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
		if (strcmp(name, ggml_type_name(types[i])) == 0) return types[i];
	return GGML_TYPE_F16;
}

static struct llama_context* open_context(const char* path, int n_ctx, enum ggml_type kv, const char* replace,
										  struct llama_model** model) {
	static struct llama_model_kv_override overrides[2];
	static ggml_backend_dev_t devices[2];
	struct llama_model_params mp = llama_model_default_params();
	mp.n_gpu_layers = 0;
	devices[0] = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
	mp.devices = devices;
	if (replace) {
		const char* eq = strchr(replace, '=');
		if (!eq || (size_t)(eq - replace) >= sizeof overrides[0].key) return NULL;
		memcpy(overrides[0].key, replace, (size_t)(eq - replace));
		overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
		overrides[0].val_i64 = atoll(eq + 1);
		mp.kv_overrides = overrides;
	}
	*model = llama_model_load_from_file(path, mp);
	if (!*model) return NULL;
	struct llama_context_params cp = llama_context_default_params();
	cp.n_ctx = (uint32_t)n_ctx;
	cp.n_batch = cp.n_ubatch = MAX_TOKENS;
	cp.n_threads = cp.n_threads_batch = 1;
	/* quantised values need it; without it blocks of tokens are not chosen */
	char arch[64] = "";
	llama_model_meta_val_str(*model, "general.architecture", arch, sizeof arch);
	const int needed = ggml_is_quantized(kv) || strcmp(arch, "minimax-m3") == 0;
	cp.flash_attn_type = needed ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
	cp.type_k = cp.type_v = kv;
	return llama_init_from_model(*model, cp);
}

int main(int argc, char** argv) {
	if (argc < 5)
		return fprintf(stderr, "usage: %s MODEL N_CTX f16|f32|q8_0|q4_0 N_PREDICT [KEY=INT] < ids\n", argv[0]), 2;
	llama_log_set(quiet, NULL);
	ggml_backend_load_all();
	struct llama_model* model = NULL;
	struct llama_context* ctx =
		open_context(argv[1], atoi(argv[2]), kv_type(argv[3]), argc > 5 ? argv[5] : NULL, &model);
	if (!ctx) return fprintf(stderr, "%s: llama.cpp cannot load it\n", argv[1]), 3;
	if (getenv("LORA")) {
		struct llama_adapter_lora* adapter = llama_adapter_lora_init(model, getenv("LORA"));
		float scale = (float)atof(getenv("LORA_SCALE"));
		if (!adapter || llama_set_adapters_lora(ctx, &adapter, 1, &scale) != 0)
			return fprintf(stderr, "%s: llama.cpp cannot load it\n", getenv("LORA")), 3;
	}
	const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), n_predict = atoi(argv[4]);
	int n = 0, token;
	struct llama_batch batch = llama_batch_init(MAX_TOKENS, 0, 1);
	for (; n < MAX_TOKENS && scanf("%d", &token) == 1; ++n) {
		batch.token[n] = token;
		batch.pos[n] = n;
		batch.n_seq_id[n] = 1;
		batch.seq_id[n][0] = 0;
		batch.logits[n] = 1;
	}
	batch.n_tokens = n;
	const int head[2] = {n_vocab, n + (n_predict > 0 ? n_predict - 1 : 0)};
	fwrite(head, sizeof head, 1, stdout);
	if (n == 0 || llama_decode(ctx, batch) != 0) return fprintf(stderr, "%s: evaluation failed\n", argv[1]), 1;
	for (int i = 0; i < n; ++i) fwrite(llama_get_logits_ith(ctx, i), sizeof(float), (size_t)n_vocab, stdout);
	token = argmax(llama_get_logits_ith(ctx, n - 1), n_vocab);
	for (int i = 1; i < n_predict; ++i) {
		batch.n_tokens = 1;
		batch.token[0] = token;
		batch.pos[0] = n + i - 1;
		if (llama_decode(ctx, batch) != 0) return fprintf(stderr, "%s: evaluation failed\n", argv[1]), 1;
		const float* row = llama_get_logits_ith(ctx, 0);
		fwrite(row, sizeof(float), (size_t)n_vocab, stdout);
		token = argmax(row, n_vocab);
	}
	return 0;
}
