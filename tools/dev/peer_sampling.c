/* What llama.cpp's samplers keep of given logits: built by make_sampling_golden.py against the peer's libllama.
 * peer_sampling MODEL < cases. A case is numbers separated by white space: DRY's multiplier, base, allowed length, last
 * n; top-n-sigma, top-k, typical-p, top-p, min-p, XTC's threshold (1: off), temperature, range and exponent of its
 * dynamic form; tokens that each cut keeps at least; the number of tokens before, and these; a logit for each token of
 * the vocabulary.
 * stdout: a line for each case, the kept tokens with their probabilities.
 * peer_sampling MODEL steps < cases. A case: 1 or 2 Mirostat's version, 3 adaptive-p; target; rate or decay;
 * temperature, seed, number of steps, logits.
 * stdout: a line for each step, the chosen token and the kept ones with their probabilities. */
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	DRY_MULTIPLIER,
	DRY_BASE,
	DRY_ALLOWED,
	DRY_LAST,
	SIGMA,
	TOP_K,
	TYPICAL,
	TOP_P,
	MIN_P,
	XTC,
	TEMP,
	RANGE,
	EXPONENT,
	MIN_KEEP,
	N_OPTIONS
};

static void quiet(enum ggml_log_level level, const char* text, void* user) {
	(void)user;
	if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int in_steps(llama_token_data* data, int n_vocab) {
	double version, target, rate, temperature, seed, steps;
	while (scanf("%lf %lf %lf %lf %lf %lf", &version, &target, &rate, &temperature, &seed, &steps) == 6) {
		struct llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
		llama_sampler_chain_add(chain, llama_sampler_init_temp((float)temperature));
		llama_sampler_chain_add(
			chain, version == 1
					   ? llama_sampler_init_mirostat(n_vocab, (uint32_t)seed, (float)target, (float)rate, 100)
			: version == 2
				? llama_sampler_init_mirostat_v2((uint32_t)seed, (float)target, (float)rate)
				: llama_sampler_init_adaptive_p((float)target, (float)rate, (uint32_t)seed));
		float* logits = malloc(sizeof *logits * (size_t)n_vocab);
		for (int i = 0; i < n_vocab; ++i)
			if (scanf("%f", &logits[i]) != 1) return 2;
		for (int step = 0; step < (int)steps; ++step) {
			for (int i = 0; i < n_vocab; ++i) data[i].id = i, data[i].p = 0, data[i].logit = logits[i];
			llama_token_data_array all = {data, (size_t)n_vocab, -1, false};
			llama_sampler_apply(chain, &all);
			llama_sampler_accept(chain, all.data[all.selected].id);
			printf("%d ", all.data[all.selected].id);
			for (size_t i = 0; i < all.size; ++i) printf("%d %.9g ", all.data[i].id, all.data[i].p);
			printf("\n");
		}
		free(logits);
		llama_sampler_free(chain);
	}
	return 0;
}

int main(int argc, char** argv) {
	llama_log_set(quiet, NULL);
	struct llama_model_params mp = llama_model_default_params();
	mp.vocab_only = true;
	struct llama_model* model = argc >= 2 ? llama_model_load_from_file(argv[1], mp) : NULL;
	if (!model) return 2;
	const struct llama_vocab* vocab = llama_model_get_vocab(model);
	const int n_vocab = llama_vocab_n_tokens(vocab);
	llama_token_data* data = malloc(sizeof *data * (size_t)n_vocab);
	if (argc == 3 && strcmp(argv[2], "steps") == 0) return in_steps(data, n_vocab);
	const char* breakers[] = {"\n", ":", "\"", "*"};
	double o[N_OPTIONS];
	while (scanf("%lf", &o[0]) == 1) {
		for (int i = 1; i < N_OPTIONS; ++i)
			if (scanf("%lf", &o[i]) != 1) return 2;
		const size_t least = (size_t)o[MIN_KEEP];
		struct llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
		llama_sampler_chain_add(chain, llama_sampler_init_dry(vocab, (float)o[DRY_MULTIPLIER], (float)o[DRY_BASE],
															  (int)o[DRY_ALLOWED], (int)o[DRY_LAST], breakers, 4));
		llama_sampler_chain_add(chain, llama_sampler_init_top_n_sigma((float)o[SIGMA]));
		llama_sampler_chain_add(chain, llama_sampler_init_top_k((int)o[TOP_K]));
		llama_sampler_chain_add(chain, llama_sampler_init_typical((float)o[TYPICAL], least));
		llama_sampler_chain_add(chain, llama_sampler_init_top_p((float)o[TOP_P], least));
		llama_sampler_chain_add(chain, llama_sampler_init_min_p((float)o[MIN_P], least));
		llama_sampler_chain_add(chain, llama_sampler_init_xtc(1, (float)o[XTC], least, 0));
		llama_sampler_chain_add(chain,
								llama_sampler_init_temp_ext((float)o[TEMP], (float)o[RANGE], (float)o[EXPONENT]));
		int n_before;
		if (scanf("%d", &n_before) != 1) return 2;
		for (int i = 0; i < n_before; ++i) {
			int token;
			if (scanf("%d", &token) != 1) return 2;
			llama_sampler_accept(chain, token);
		}
		for (int i = 0; i < n_vocab; ++i) {
			data[i].id = i, data[i].p = 0;
			if (scanf("%f", &data[i].logit) != 1) return 2;
		}
		llama_token_data_array all = {data, (size_t)n_vocab, -1, false};
		llama_sampler_apply(chain, &all);
		double max = -INFINITY, sum = 0;
		for (size_t i = 0; i < all.size; ++i) max = fmax(max, all.data[i].logit);
		for (size_t i = 0; i < all.size; ++i) sum += exp(all.data[i].logit - max);
		for (size_t i = 0; i < all.size; ++i)
			if (all.data[i].logit != -INFINITY)
				printf("%d %.9g ", all.data[i].id, exp(all.data[i].logit - max) / sum);
		printf("\n");
		llama_sampler_free(chain);
	}
	return 0;
}
