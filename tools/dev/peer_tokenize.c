// Prints llama.cpp's token ids of a text, without BOS; built by make_peer_tokens.sh against the peer's libllama.
// peer_tokenize VOCAB.gguf < text: ids separated by spaces, on one line
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>

static void quiet(enum ggml_log_level level, const char* text, void* user) {
	(void)user;
	if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char** argv) {
	if (argc != 2) return 2;
	llama_log_set(quiet, NULL);
	struct llama_model_params params = llama_model_default_params();
	params.vocab_only = true;
	struct llama_model* model = llama_model_load_from_file(argv[1], params);
	if (!model) return 1;
	const size_t room = (size_t)64 << 20;
	char* text = malloc(room);
	if (!text) return 1;
	const size_t bytes = fread(text, 1, room, stdin);
	const int most = (int)bytes + 16;
	llama_token* ids = malloc((size_t)most * sizeof *ids);
	if (!ids) return 1;
	const int n = llama_tokenize(llama_model_get_vocab(model), text, (int)bytes, ids, most, false, false);
	for (int i = 0; i < n; ++i) printf(i ? " %d" : "%d", ids[i]);
	printf("\n");
	free(ids);
	free(text);
	llama_model_free(model);
	return n < 0;
}
