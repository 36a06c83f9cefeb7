/* The example of engine/api/README.md: continues a text. The test `consumers` compiles it as C99 with every warning. */
#include <kvrun.h>

#include <stdio.h>

static int print(uint32_t token, const char *text, size_t length, void *payload)
{
	(void)token, (void)payload;
	return fwrite(text, 1, length, stdout) != length;
}

int main(int argc, char **argv)
{
	kvrun_engine_options engine_options = KVRUN_ENGINE_OPTIONS_INIT;
	kvrun_device_options device_options = KVRUN_DEVICE_OPTIONS_INIT;
	kvrun_session_options session_options = KVRUN_SESSION_OPTIONS_INIT;
	kvrun_generate_options generate_options = KVRUN_GENERATE_OPTIONS_INIT;
	kvrun_engine *engine = NULL;
	kvrun_session *session = NULL;

	if (argc < 3) {
		fprintf(stderr, "usage: generate MODEL PROMPT [DEVICE]\n");
		return 2;
	}
	device_options.device = argc > 3 ? argv[3] : NULL;
	engine_options.model_path = argv[1];
	engine_options.device = &device_options;
	session_options.kv = "kivi2";
	generate_options.max_tokens = 16;
	generate_options.temperature = 0;
	generate_options.on_token = print;
	if (kvrun_engine_open(&engine, &engine_options) || kvrun_session_open(&session, engine, &session_options) ||
	    kvrun_generate_text(session, argv[2], &generate_options, NULL)) {
		fprintf(stderr, "error: %s\n", kvrun_last_error());
		return 1;
	}
	printf("\n");
	kvrun_session_free(session);
	kvrun_engine_free(engine);
	return 0;
}
