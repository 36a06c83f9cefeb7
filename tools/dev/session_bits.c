/* Writes what two builds of kvrun must agree on bit for bit: the logits of a text and of the tokens after it, and the
 * session as a file. Built by tools/dev/arm_check.sh for both processors.
 *   session_bits MODEL TEXT_FILE POLICY DEVICE LOGITS_OUT SESSION_OUT       reads the text, decodes, saves
 *   session_bits MODEL --restore SESSION DEVICE LOGITS_OUT                  goes on with a saved session */
#include "engine/kvrun.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSteps = 8, kMostTokens = 8192, kMostText = 65536 };

static void check(kvrun_status s, const char* what) {
	if (s == KVRUN_OK) return;
	fprintf(stderr, "error: %s: %s\n", what, kvrun_last_error());
	exit(1);
}
static void put(FILE* f, const float* logits, size_t vocab) {
	if (fwrite(logits, sizeof(float), vocab, f) == vocab) return;
	fprintf(stderr, "error: the logits could not be written\n");
	exit(1);
}
static FILE* open_file(const char* path, const char* mode) {
	FILE* f = fopen(path, mode);
	if (!f) {
		fprintf(stderr, "error: %s could not be opened\n", path);
		exit(2);
	}
	return f;
}

int main(int argc, char** argv) {
	static char text[kMostText];
	static uint32_t tokens[kMostTokens];
	const int restores = argc == 6 && !strcmp(argv[2], "--restore");
	if (argc != 7 && !restores) {
		fprintf(stderr, "usage: session_bits MODEL TEXT POLICY DEVICE LOGITS SESSION\n"
		                "       session_bits MODEL --restore SESSION DEVICE LOGITS\n");
		return 2;
	}
	kvrun_device_options device = KVRUN_DEVICE_OPTIONS_INIT;
	kvrun_engine_options options = KVRUN_ENGINE_OPTIONS_INIT;
	kvrun_session_options of_session = KVRUN_SESSION_OPTIONS_INIT;
	kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
	kvrun_engine* engine = NULL;
	kvrun_session* session = NULL;
	device.device = argv[4];
	options.model_path = argv[1];
	options.device = &device;
	check(kvrun_engine_open(&engine, &options), argv[1]);
	check(kvrun_engine_get_info(engine, &info), "engine");
	float* logits = malloc(info.vocab * sizeof(float));
	if (!logits) return 4;
	FILE* out = open_file(argv[5], "wb");
	uint32_t next = 0;
	if (restores) {
		check(kvrun_session_restore(&session, engine, argv[3]), argv[3]);
		next = 1; /* the file has no logits; any token goes on */
	} else {
		FILE* in = open_file(argv[2], "rb");
		const size_t length = fread(text, 1, sizeof text, in);
		fclose(in);
		size_t count = 0;
		of_session.kv = argv[3];
		check(kvrun_session_open(&session, engine, &of_session), argv[3]);
		check(kvrun_tokenize(engine, text, length, 0, tokens, kMostTokens, &count), "tokens");
		check(kvrun_prefill(session, tokens, count, NULL, logits), "prompt");
		put(out, logits, info.vocab);
		for (uint32_t i = 1; i < info.vocab; i++)
			if (logits[i] > logits[next]) next = i;
	}
	for (int step = 0; step < kSteps; step++) {
		check(kvrun_decode(&session, &next, 1, logits, NULL), "decode");
		put(out, logits, info.vocab);
		next = 0;
		for (uint32_t i = 1; i < info.vocab; i++)
			if (logits[i] > logits[next]) next = i;
	}
	if (fclose(out)) return 1;
	if (!restores) check(kvrun_session_save(session, argv[6], NULL, 0), argv[6]);
	kvrun_session_free(session);
	kvrun_engine_free(engine);
	free(logits);
	return 0;
}
