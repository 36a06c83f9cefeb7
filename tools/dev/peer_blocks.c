// Blocks of a quantised tensor type -> floats, by GGML's definition; built against the peer's libggml.
// peer_blocks TYPE_NUMBER < blocks > floats
#include <ggml.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
	if (argc != 2) return 2;
	const enum ggml_type type = (enum ggml_type)atoi(argv[1]);
	const struct ggml_type_traits* traits = ggml_get_type_traits(type);
	if (!traits->to_float) return 1;
	char* block = malloc(traits->type_size);
	float* x = malloc(sizeof(float) * (size_t)traits->blck_size);
	if (!block || !x) return 1;
	while (fread(block, traits->type_size, 1, stdin) == 1) {
		traits->to_float(block, x, traits->blck_size);
		if (fwrite(x, sizeof *x, (size_t)traits->blck_size, stdout) != (size_t)traits->blck_size) return 1;
	}
	free(block);
	free(x);
	return 0;
}
