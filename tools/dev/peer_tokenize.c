// Prints llama.cpp's token ids, without BOS; built by make_peer_tokens.sh against the peer's libllama.
// peer_tokenize VOCAB.gguf < text: ids separated by spaces, on one line
// peer_tokenize VOCAB.gguf MARK < texts: one line of ids for each text; texts end with MARK
#define _GNU_SOURCE
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void quiet(enum ggml_log_level level, const char* text, void* user) {
	(void)user;
	if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int print_ids(const struct llama_vocab* vocab, const char* text, size_t bytes) {
	const int most = (int)bytes + 16;
	llama_token* ids = malloc((size_t)most * sizeof *ids);
	if (!ids) return -1;
	const int n = llama_tokenize(vocab, text, (int)bytes, ids, most, false, false);
	for (int i = 0; i < n; ++i) printf(i ? " %d" : "%d", ids[i]);
	printf("\n");
	free(ids);
	return n;
}

int main(int argc, char** argv) {
	if (argc != 2 && argc != 3) return 2;
	llama_log_set(quiet, NULL);
	struct llama_model_params params = llama_model_default_params();
	params.vocab_only = true;
	struct llama_model* model = llama_model_load_from_file(argv[1], params);
	if (!model) return 1;
	const struct llama_vocab* vocab = llama_model_get_vocab(model);
	const size_t room = (size_t)64 << 20;
	char* text = malloc(room);
	if (!text) return 1;
	const char* end = text + fread(text, 1, room, stdin);
	int bad = 0;
	if (argc == 2) {
		bad = print_ids(vocab, text, (size_t)(end - text)) < 0;
	} else {
		const size_t mark = strlen(argv[2]);
		const char* next;
		for (const char* at = text; !bad && (next = memmem(at, (size_t)(end - at), argv[2], mark)); at = next + mark)
			bad = print_ids(vocab, at, (size_t)(next - at)) < 0;
	}
	free(text);
	llama_model_free(model);
	return bad;
}
