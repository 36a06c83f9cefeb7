/* kvrun: large language models on any GPU, with a packed KV cache. The C interface of libkvrun.
 *
 * Rules that hold for every function:
 * - Functions that can fail return kvrun_status: KVRUN_OK (0) or a negative code. Their results come through the first
 *   parameters, named `out`; handles are NULL there after a failure. kvrun_last_error() says in one line what was wrong
 *   and what to do.
 * - A struct of options or results begins with struct_size; initialise it with its _INIT macro, or with its _init
 *   function, as kvrun_plan_options_init(&o, sizeof o). NULL for options means their defaults.
 * - Handles are values, not addresses: a handle that was freed, or is of another kind, gives KVRUN_EINVALID. A _free
 *   function takes NULL. What a handle needs stays alive as long as it does, so handles may be freed in any order.
 *   (kvrun_canceller is an address, so that a signal handler can use it: free it last and once.)
 * - Text is UTF-8. Text in results belongs to the handle it came from, text in callbacks to the callback.
 * - Nothing is printed, no signal handler is installed, no exception leaves the library, and no environment variable is
 *   read except those of the Vulkan loader that say where drivers are.
 * - Threads: any number of threads may use an engine at once; they take turns on the device, for about 0.1 s of work
 *   at a time. A session and a batch belong to one thread at a time: a call on one that is in use, by
 *   another thread or by the call whose callback this is, gives KVRUN_EBUSY. Calls that only read a session
 *   wait for the current work instead; their comments say so.
 * - Callbacks run on the thread that made the call, with no lock held unless they say otherwise. Their last
 *   parameter is the payload that was given with them. A result other than 0 stops the call, which returns KVRUN_EUSER.
 */
#ifndef KVRUN_H
#define KVRUN_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(KVRUN_BUILD)
#define KVRUN_API __declspec(dllexport)
#elif defined(_WIN32) && defined(KVRUN_STATIC)
#define KVRUN_API /* define it to link libkvrun.a instead of the DLL */
#elif defined(_WIN32)
#define KVRUN_API __declspec(dllimport)
#else
#define KVRUN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status, version, log */

#define KVRUN_ABI_VERSION 1 /* programs built with another number must be rebuilt */

#ifdef __cplusplus
#define KVRUN_INT_ENUM : int /* as in C: every int is a valid value, including those of later versions */
#else
#define KVRUN_INT_ENUM
#endif

typedef enum KVRUN_INT_ENUM {
	KVRUN_OK = 0,
	KVRUN_EINVALID = -1,     /* an argument is wrong */
	KVRUN_ENOTFOUND = -2,    /* a named thing does not exist */
	KVRUN_EUNSUPPORTED = -3, /* well-formed, but this version does not support it */
	KVRUN_ENOMEM = -4,       /* host or device memory, or the cache budget, is used up */
	KVRUN_EDEVICE = -5,      /* the device or its driver refused or failed */
	KVRUN_EIO = -6,          /* reading or writing a file failed */
	KVRUN_EBUFFER = -7,      /* the caller's buffer is too small; the length it needs is in the result */
	KVRUN_EUSER = -8,        /* a callback stopped the call */
	KVRUN_EFORMAT = -9,      /* a file's content breaks its format */
	KVRUN_ECONTEXT = -10,    /* the tokens do not fit the context */
	KVRUN_EBUSY = -11,       /* the session or batch is in use */
	KVRUN_ECANCELLED = -12,  /* kvrun_cancel() stopped the call */
	KVRUN_EINTERNAL = -13    /* a defect of kvrun */
} kvrun_status;

KVRUN_API uint32_t kvrun_abi_version(void);              /* KVRUN_ABI_VERSION of the library */
KVRUN_API const char* kvrun_version(void);               /* "0.1.0" */
KVRUN_API const char* kvrun_status_name(kvrun_status s); /* "KVRUN_EINVALID"; "unknown" for other numbers */
/* The error message of this thread's last call of a function that returns kvrun_status; "" after a success. Never NULL;
 * valid until this thread's next call. */
KVRUN_API const char* kvrun_last_error(void);

/* level 0: warnings, 1: summaries, 2: every step, 3: every operation. line: `length` bytes without a newline, then a
 * terminating zero. Called by one thread at a time. */
typedef void (*kvrun_log_cb)(int level, const char* line, size_t length, void* payload);
/* Sends log lines of levels up to max_level to cb: those of all engines in the process without a log of their own
 * (kvrun_engine_options.log), and those of calls without an engine. NULL discards them, which is the default. */
KVRUN_API kvrun_status kvrun_set_log(kvrun_log_cb cb, int max_level, void* payload);

/* ---- cancelling */

typedef struct kvrun_canceller kvrun_canceller;
KVRUN_API kvrun_status kvrun_canceller_new(kvrun_canceller** out);
/* Every call that was given this canceller stops within one submission to the device and returns KVRUN_ECANCELLED.
 * Later calls return it at once, until kvrun_canceller_reset(). Safe from any thread and from a signal handler. */
KVRUN_API void kvrun_cancel(kvrun_canceller* canceller);
KVRUN_API void kvrun_canceller_reset(kvrun_canceller* canceller);
KVRUN_API int kvrun_canceller_is_set(const kvrun_canceller* canceller);
KVRUN_API void kvrun_canceller_free(kvrun_canceller* canceller);

/* ---- devices */

typedef struct {
	uint32_t struct_size;
	const char* backend;   /* only devices of this backend: "vulkan", "cpu"; NULL: all */
	const char* device;    /* index in the list of devices, part of a name, or a backend's name; NULL: the best GPU, a
	                          device on the host's processor only if there is no GPU. Several, separated by commas,
	                          divide the layers of a model among them */
	const char* cache_dir; /* folder for compiled shaders, for what kvrun tune measured, and for the results of
	                          self-tests: when a driver is used for the first time, a few operations are compared with
	                          the cpu backend. NULL: no folder; shaders are compiled each time and there is no
	                          self-test */
	const char* probe;    /* path of the program kvrun-probe, which loads drivers in a separate process first, so that a
	                         driver    that crashes is refused; NULL: drivers are loaded without a probe */
	const char* validate; /* Vulkan validation layer: "1", "sync", "gpu"; any message is an error. NULL: off */
	const char* dump;     /* FOLDER[:OPERATION[:LAYER]]: writes inputs and outputs of operations as .npy; NULL: off */
	const char* shaders;  /* folder with .spv files that replace the built-in shaders; NULL: none */
	const char* test_caps; /* clamps limits of the device, for tests; NULL: no clamps */
	int check;             /* 1: also run every operation on the cpu backend, stop at the first difference (slow) */
	int poison;            /* 1: fill new device memory with NaN, so that reads of unwritten memory are noticed */
	int f32_matmul; /* 1: multiply and attend in f32 also where the device has matrix units, which take f16, or integer
	                 * dot products, which take int8 */
	double submit_ms; /* target time of one submission to the device */
	/* Called if the probe has found a driver that must be left out: the callback must set the environment variable
	 * VK_DRIVER_FILES to `files`. NULL: Vulkan is not used while such a driver is installed. */
	void (*set_driver_files)(const char* files, void* payload);
	void* payload;
	/* If `device` lists several: numbers in proportion to which each gets layers, "20,12"; NULL or "auto": by
	 * measured speed and free memory */
	const char* split;
} kvrun_device_options;
#define KVRUN_DEVICE_OPTIONS_INIT                                                                                      \
	{ sizeof(kvrun_device_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 100.0, NULL, NULL, NULL }

typedef struct {
	uint32_t struct_size;
	int usable;                /* 0: `refused` says why it cannot be used */
	int is_cpu;                /* runs on the host's processor */
	const char* backend;       /* "vulkan", "cpu" */
	const char* name;          /* of the device */
	const char* driver;        /* its name and version */
	const char* type;          /* "discrete", "integrated", "virtual", "cpu" */
	const char* refused;       /* "" if it is usable */
	uint64_t memory_bytes;     /* total */
	uint64_t free_bytes;       /* that kvrun may still allocate */
	uint64_t max_buffer_bytes; /* largest allocation */
} kvrun_device_info;
#define KVRUN_DEVICE_INFO_INIT                                                                                         \
	{ sizeof(kvrun_device_info), 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0 }

typedef struct kvrun_devices kvrun_devices;
/* Lists all devices: usable ones first, the best of them at index 0. Starts no engine. */
KVRUN_API kvrun_status kvrun_devices_list(kvrun_devices** out, const kvrun_device_options* options);
KVRUN_API size_t kvrun_devices_count(const kvrun_devices* devices);
KVRUN_API kvrun_status kvrun_devices_get(const kvrun_devices* devices, size_t index, kvrun_device_info* out);
KVRUN_API void kvrun_devices_free(kvrun_devices* devices);

/* ---- engines: a model on a device */

/* done: share of the work that is done, 0 to 1. seconds_left: at the speed so far; 0 if unknown. */
typedef int (*kvrun_progress_cb)(double done, double seconds_left, void* payload);

/* Which weights lie in host memory, where the device reads them over the bus. Weights of which a token reads the
 * smallest share go first: experts, of which it reads a few, and the embedding, of which it reads a row. On devices
 * that share the host's memory all weights lie there. */
#define KVRUN_ALL_LAYERS UINT32_MAX
typedef struct {
	uint32_t struct_size;
	int no_fit;              /* 1: only the fields below move weights to host memory; 0: as many more are moved as
	                            kv_budget_bytes, or a cache of ctx tokens under kv, needs */
	uint64_t budget_bytes;   /* most bytes of weights on the device; 0: no limit */
	uint32_t gpu_layers;     /* this many layers stay on the device, the last ones; n_layers + 1: also the output */
	uint32_t cpu_moe_layers; /* the experts of this many layers, the first ones, lie in host memory */
	uint32_t ctx;            /* tokens, at most 16777216; 0: 8192, at most the trained context */
	const char* kv;          /* policies, comma-separated; NULL: fp16 */
} kvrun_weight_options;
#define KVRUN_WEIGHT_OPTIONS_INIT                                                                                      \
	{ sizeof(kvrun_weight_options), 0, 0, KVRUN_ALL_LAYERS, 0, 0, NULL }

/* kvrun_engine_options.draft_model: the layer behind the model's own that predicts one more token, in files that have
 * one (key nextn_predict_layers); its weights and cache are in kvrun_engine_info.activation_bytes. */
#define KVRUN_DRAFT_MTP "mtp"

typedef struct kvrun_engine kvrun_engine;
typedef struct {
	uint32_t struct_size;
	const char* model_path;             /* a .gguf file, or the first part of a split one */
	const kvrun_device_options* device; /* NULL: defaults */
	uint64_t kv_budget_bytes;           /* for the caches of all sessions; 0: the free device memory */
	uint32_t ubatch;                    /* most prompt tokens that a layer processes together; affects speed only */
	uint32_t prefill_block;     /* most prompt tokens that are processed layer by layer; 0: as many as memory allows */
	uint32_t max_rows;          /* most sessions in one decode step, 1 to 32 */
	kvrun_progress_cb progress; /* of loading; NULL: none */
	void* payload;              /* of progress */
	kvrun_canceller* canceller; /* stops loading; NULL: none */
	kvrun_log_cb log;           /* lines of this engine, of levels up to log_level; NULL: kvrun_set_log() */
	int log_level;
	void* log_payload;
	const kvrun_weight_options* weights; /* NULL: defaults */
	const char* draft_model; /* guesses tokens for kvrun_generate_options.draft_max: path of a small .gguf file with the
	                            same vocabulary, or of one made for the model (EAGLE-3, DFlash, DSpark, an assistant),
	                            or KVRUN_DRAFT_MTP; NULL: guesses are looked up in the text. Its weights and caches
	                            take memory of the same device, in addition to this engine's */
	const char* loras;  /* LoRA adapters of the model, .gguf files: "FILE[:SCALE]", several separated by commas; NULL:
	                       none. Sessions saved with them are restored with the same ones only.
	                       kvrun_engine_set_lora_scales() changes the scales */
	const char* mmproj; /* the model's encoder of images or sounds, or both, a .gguf file (mmproj-...); NULL: it reads
	                       text alone */
	/* Tokens of an image, where its size decides: it is made smaller or larger for them. 0: the encoder's limits. */
	uint32_t image_min_tokens, image_max_tokens;
} kvrun_engine_options;
#define KVRUN_ENGINE_OPTIONS_INIT                                                                                      \
	{                                                                                                                  \
		sizeof(kvrun_engine_options), NULL, NULL, 0, 512, 0, 8, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL,     \
		    NULL, 0, 0                                                                                                 \
	}

KVRUN_API kvrun_status kvrun_engine_open(kvrun_engine** out, const kvrun_engine_options* options);
/* The engine is destroyed when its last session and batch are also freed. */
KVRUN_API void kvrun_engine_free(kvrun_engine* engine);

typedef struct {
	uint32_t struct_size;
	uint32_t vocab; /* tokens of the vocabulary */
	uint32_t n_layers, n_heads, n_kv_heads, head_dim, dim;
	uint32_t ctx_train;       /* context the model was trained with, in tokens */
	uint32_t bos, eos;        /* KVRUN_NO_TOKEN if the model has none */
	int adds_bos;             /* texts begin with bos */
	int has_chat_template;    /* the file contains one */
	const char* architecture; /* "llama" */
	const char* name;         /* from the file; may be "" */
	const char *device_name, *device_driver, *backend;
	uint64_t weight_bytes;      /* on the device */
	uint64_t activation_bytes;  /* on the device, now, without weights and caches */
	uint64_t kv_budget_bytes;   /* for the caches of all sessions */
	uint64_t kv_used_bytes;     /* part of the budget that is allocated now */
	uint32_t max_rows;          /* most sessions in one decode step */
	int device_is_cpu;          /* 1: it runs on the host's processor: the cpu backend or a software driver */
	uint64_t host_weight_bytes; /* in host memory, read by the device over the bus */
	const char* weights;        /* one line that says which weights lie where; "" if all are on one device */
	int reads_images;           /* 1: it has a vision encoder */
	/* 1: the model encodes texts: its tokens see each other, kvrun_embed_texts() makes vectors of texts, and there are
	 * no sessions (KVRUN_EUNSUPPORTED) */
	int encodes;
	uint32_t vector_dim;   /* channels of the vectors that kvrun_embed() and kvrun_embed_texts() make */
	uint32_t n_scores;     /* scores of the model's classifier, for kvrun_score_texts(); 0: it has none */
	uint64_t n_params;     /* numbers of all tensors of the model's file */
	uint64_t tensor_bytes; /* bytes of all tensors in the file */
	uint32_t audio_rate;   /* samples per second that kvrun_audio_add() takes; 0: it has no audio encoder */
} kvrun_engine_info;
#define KVRUN_ENGINE_INFO_INIT                                                                                         \
	{                                                                                                                  \
		sizeof(kvrun_engine_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, \
		    NULL, 0, 0, 0, 0, 0, 0, 0                                                                                  \
	}
KVRUN_API kvrun_status kvrun_engine_get_info(kvrun_engine* engine, kvrun_engine_info* out);

typedef struct {
	uint32_t struct_size;
	uint64_t budget_bytes;   /* most host memory for all sessions; 0: a quarter of the machine's memory */
	const char* offload_dir; /* folder for an unnamed file that holds what exceeds budget_bytes; NULL: no file */
} kvrun_host_memory_options;
#define KVRUN_HOST_MEMORY_OPTIONS_INIT                                                                                 \
	{ sizeof(kvrun_host_memory_options), 0, NULL }
/* Policies that fetch also keep every token in f16 in host memory; this limits that memory, for allocations from now
 * on. Without offload_dir a session whose context does not fit the budget is not opened. With it, a full or failing
 * disk ends a call with KVRUN_EIO; the answer so far is kept. No effect on a model that encodes texts. */
KVRUN_API kvrun_status kvrun_engine_set_host_memory(kvrun_engine* engine, const kvrun_host_memory_options* options);

/* Sets the scales of the adapters of kvrun_engine_options.loras, in their order, for all that is computed from now on.
 * A session that holds tokens goes on only with the scales that these were read with: with others, KVRUN_EINVALID until
 * it is reset or the scales are set back. Reads the adapters' files again. KVRUN_EINVALID for another number of
 * scales. */
KVRUN_API kvrun_status kvrun_engine_set_lora_scales(kvrun_engine* engine, const float* scales, size_t count);

/* Metadata of the model's file, in file order. value: numbers and flags in decimal, text unchanged, an array as its
 * type and length: "[string x 32000]". */
KVRUN_API size_t kvrun_metadata_count(kvrun_engine* engine);
KVRUN_API kvrun_status kvrun_metadata_get(kvrun_engine* engine, size_t index, const char** out_key,
                                          const char** out_value);

/* ---- tokens */

#define KVRUN_NO_TOKEN UINT32_MAX

enum {
	KVRUN_TOKENS_NO_BOS = 1, /* do not begin with bos */
	KVRUN_TOKENS_SPECIAL =
	    2, /* control tokens spelled out in the text become tokens, and are shown; never use it for a user's text */
	KVRUN_TOKENS_END = 4 /* end with the token that the file names for texts that are embedded, if it does */
};
/* Writes the tokens of text (length bytes) to out and their number to *out_count. KVRUN_EBUFFER if there are more than
 * capacity; *out_count is then the number. */
KVRUN_API kvrun_status kvrun_tokenize(kvrun_engine* engine, const char* text, size_t length, uint32_t flags,
                                      uint32_t* out, size_t capacity, size_t* out_count);
/* The text of tokens: *out_length bytes and a terminating zero, for which capacity must have room. */
KVRUN_API kvrun_status kvrun_detokenize(kvrun_engine* engine, const uint32_t* tokens, size_t count, uint32_t flags,
                                        char* out, size_t capacity, size_t* out_length);

/* ---- images and sounds, for models with an encoder (kvrun_engine_options.mmproj) */

/* In a list of tokens, from this number up to KVRUN_NO_TOKEN - 1: a row that an encoder made of an image or a sound. */
#define KVRUN_FIRST_IMAGE_ROW 0x80000000u

/* Adds an image: rgb holds height rows of width pixels of 3 bytes (red, green, blue), the top row first. Equal images
 * have equal ids. The engine holds up to 512 MiB of images and forgets those used longest ago. KVRUN_EUNSUPPORTED
 * without an encoder. */
KVRUN_API kvrun_status kvrun_image_add(kvrun_engine* engine, const uint8_t* rgb, uint32_t width, uint32_t height,
                                       uint64_t* out_id);
/* The same of a sound: samples of one channel in -1 .. 1, kvrun_engine_info.audio_rate in a second. KVRUN_EINVALID for
 * samples that are not finite, and for a sound that is too short for the encoder. */
KVRUN_API kvrun_status kvrun_audio_add(kvrun_engine* engine, const float* samples, size_t n_samples, uint64_t* out_id);
/* The tokens of an image or a sound, for a prompt; buffers as in kvrun_tokenize(). Their rows have no text. MiniCPM-V's
 * images have their number in front, which is 0 here; kvrun_chat_tokens() counts them. The encoder runs when the prompt
 * is read. KVRUN_ENOTFOUND if it is no longer held, also of a prompt: add it again. */
KVRUN_API kvrun_status kvrun_image_tokens(kvrun_engine* engine, uint64_t id, uint32_t* out, size_t capacity,
                                          size_t* out_count);

/* ---- chat templates */

typedef struct {
	const char* role;    /* "system", "user", "assistant", "tool" */
	const char* content; /* the text */
} kvrun_message;
typedef struct {
	uint32_t struct_size;
	const kvrun_message* messages; /* (n_messages); NULL if messages_json is given */
	size_t n_messages;
	const char* messages_json;  /* array of messages in the form of OpenAI's API, with content, tool_calls... An
	                               image is a part {"type": "image", "id": "0123456789abcdef"}, kvrun_image_add(), and
	                               a sound one of type "audio", kvrun_audio_add() */
	const char* tools_json;     /* array of tool definitions; NULL: none */
	const char* variables_json; /* object of more template variables: {"enable_thinking": false}; NULL: none */
	const char* template_name;  /* name of a template in the file or of a built-in one; NULL: the file's default */
	const char* template_text;  /* source of a Jinja template, instead of a name; NULL: use template_name */
	int no_answer;              /* 1: the text does not end with the beginning of an answer; 2: it ends with the text of
	                               the last message, which is one of the assistant, and the answer continues that */
} kvrun_chat_options;
#define KVRUN_CHAT_OPTIONS_INIT                                                                                        \
	{ sizeof(kvrun_chat_options), NULL, 0, NULL, NULL, NULL, NULL, NULL, 0 }
/* The tokens of a conversation. Control tokens come from the template only: a message that spells one stays text. If
 * the file has no template, none is assumed: the message of KVRUN_ENOTFOUND lists the names that can be given. */
KVRUN_API kvrun_status kvrun_chat_tokens(kvrun_engine* engine, const kvrun_chat_options* options, uint32_t* out,
                                         size_t capacity, size_t* out_count);
/* The same as text: *out_length bytes and a terminating zero. An image is "[image]", a sound "[audio]". */
KVRUN_API kvrun_status kvrun_chat_text(kvrun_engine* engine, const kvrun_chat_options* options, char* out,
                                       size_t capacity, size_t* out_length);

/* The names that template_name takes: those in the file, then the built-in ones. *out is "" beyond the last. */
KVRUN_API kvrun_status kvrun_chat_template_name(kvrun_engine* engine, size_t index, char* out, size_t capacity,
                                                size_t* out_length);

typedef struct {
	uint32_t struct_size;
	int system_role;     /* the template has a place for a system message; else its text goes in front of the user's
	                        first message */
	int tools;           /* definitions of tools reach the prompt: 1 in the template's place for them, 2 in the system
	                        message, because the template has none,
	                        or writes calls in a form that is not known */
	int thinking_switch; /* the variable enable_thinking has an effect; where the template has another name for
	                        it, the switch is passed on under that one */
	int special_markers; /* 1: control tokens mark calls of tools: generate with special = 1 if there are tools;
	                        2: generate with special = 1 always, because control tokens mark parts of each answer */
	int reasoning;       /* answers may contain reasoning */
} kvrun_chat_features;
#define KVRUN_CHAT_FEATURES_INIT                                                                                       \
	{ sizeof(kvrun_chat_features), 0, 0, 0, 0, 0 }
/* What the template of these options supports; their messages may be missing. */
KVRUN_API kvrun_status kvrun_chat_get_features(kvrun_engine* engine, const kvrun_chat_options* options,
                                               kvrun_chat_features* out);

/* Splits an answer, while it is generated, into shown text, reasoning and calls of tools. */
typedef struct kvrun_reply kvrun_reply;
typedef struct {
	uint32_t struct_size;
	const char* content;   /* new text to show. All texts here are valid until the next call for this reply; zero bytes
	                          that the model writes are left out */
	const char* reasoning; /* new text of the reasoning */
	const char* calls;     /* JSON array of complete calls of tools, in the form of OpenAI's API; "[]": none */
	const char* call_deltas; /* JSON array of new parts of calls, in the form in which OpenAI's API streams them: index
	                            and more text of the arguments, the first also with id and name; "[]": none */
	size_t unfinished; /* kvrun_reply_finish(): so many bytes at the end of content begin a marker or a call that did
	                      not come to its end. If the answer was cut off, they are nothing to show */
} kvrun_reply_part;
#define KVRUN_REPLY_PART_INIT                                                                                          \
	{ sizeof(kvrun_reply_part), NULL, NULL, NULL, NULL, 0 }
/* options: those that the prompt was made with. */
KVRUN_API kvrun_status kvrun_reply_new(kvrun_reply** out, kvrun_engine* engine, const kvrun_chat_options* options);
/* Takes more text of the answer. Text that may still become a marker or a call is held back. Calls of functions in
 * tools_json are streamed from the beginning of their arguments. If such a call is cut off or malformed, it still
 * counts as complete at the end, but its arguments are not valid JSON. */
KVRUN_API kvrun_status kvrun_reply_push(kvrun_reply* reply, const char* text, size_t length, kvrun_reply_part* out);
/* The answer has ended; gives what was held back. */
KVRUN_API kvrun_status kvrun_reply_finish(kvrun_reply* reply, kvrun_reply_part* out);
KVRUN_API void kvrun_reply_free(kvrun_reply* reply);

/* ---- KV-cache policies */

typedef struct {
	uint32_t struct_size;
	const char* name;    /* "kivi2"; options may follow it: "kivi2,recent=64" */
	const char* summary; /* one line */
	const char* source;  /* the paper; "" if there is none */
} kvrun_policy_info;
#define KVRUN_POLICY_INFO_INIT                                                                                         \
	{ sizeof(kvrun_policy_info), NULL, NULL, NULL }
/* The policies, in the order of `kvrun help plan`. Their texts stay valid until the program ends. */
KVRUN_API size_t kvrun_policy_count(void);
KVRUN_API kvrun_status kvrun_policy_get(size_t index, kvrun_policy_info* out);

/* ---- sessions: one sequence of tokens under one KV-cache policy */

typedef struct kvrun_session kvrun_session;
typedef struct {
	uint32_t struct_size;
	const char* kv; /* KV-cache policy, as of `kvrun run --kv`: "fp16", "kivi2", "zipcache,ratio=0.4"; NULL: fp16 */
	uint32_t ctx;   /* longest sequence in tokens, at most 16777216; 0: as many as fit, at most the trained context */
	uint32_t checkpoints; /* most states that kvrun_session_truncate() can return to, one at the end of each prompt: the
	                         first and the newest ones, or the newest alone */
	uint64_t seed;        /* of the policy's random choices */
} kvrun_session_options;
#define KVRUN_SESSION_OPTIONS_INIT                                                                                     \
	{ sizeof(kvrun_session_options), NULL, 0, 0, 1 }

KVRUN_API kvrun_status kvrun_session_open(kvrun_session** out, kvrun_engine* engine,
                                          const kvrun_session_options* options);
KVRUN_API void kvrun_session_free(kvrun_session* session);
/* A new session with the same tokens. Both share the pages of the cache until one of them writes. */
KVRUN_API kvrun_status kvrun_session_fork(kvrun_session** out, kvrun_session* session);
/* Removes all tokens from index n_tokens on. Possible if no later token has been packed or dropped, and at checkpoints;
 * otherwise KVRUN_EINVALID. kvrun_session_exact_position() gives the nearest possible position before it: truncate to
 * that one and prefill the rest again. */
KVRUN_API kvrun_status kvrun_session_truncate(kvrun_session* session, uint32_t n_tokens);
KVRUN_API kvrun_status kvrun_session_exact_position(kvrun_session* session, uint32_t n_tokens, uint32_t* out);
/* Truncates to the longest possible common prefix with `tokens` that leaves at least one of them to be read; *out_kept
 * is its length. */
KVRUN_API kvrun_status kvrun_session_keep_common(kvrun_session* session, const uint32_t* tokens, size_t count,
                                                 uint32_t* out_kept);

typedef struct {
	uint32_t struct_size;
	uint32_t n_tokens;       /* in the cache */
	uint32_t ctx;            /* longest sequence in tokens */
	const char* kv;          /* policy */
	uint64_t f16_bytes;      /* of the cache: tokens in f16 */
	uint64_t code_bytes;     /* packed codes */
	uint64_t param_bytes;    /* scales and zero points */
	uint64_t overhead_bytes; /* empty slots of pages, tables, validity bitmaps, buffers of fetched tokens */
	uint64_t total_bytes;    /* sum of the above */
	uint64_t f16_equivalent; /* size of an f16 cache of as many tokens */
	int takes_drafts; /* 1: answers may use kvrun_generate_options.draft_max, because the policy and the model can
	                     remove the newest tokens */
} kvrun_session_info;
#define KVRUN_SESSION_INFO_INIT                                                                                        \
	{ sizeof(kvrun_session_info), 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0 }
/* Works also for a session that is in use. */
KVRUN_API kvrun_status kvrun_session_get_info(kvrun_session* session, kvrun_session_info* out);

typedef struct {
	uint32_t struct_size;
	uint32_t fetch;         /* tokens that each step reads in f16, per layer and kv head; 0: the policy fetches none */
	uint64_t steps;         /* decode steps that the following fields cover */
	double f16_share;       /* share of attention on tokens that were in f16, summed over the steps */
	uint64_t fetched_bytes; /* copied from host memory */
	double hidden_seconds;  /* time the host gathered them while the device computed */
	double open_seconds;    /* time the host gathered them while the device waited */
	uint64_t host_bytes;    /* of the tokens in f16, now; forks share them until one of them writes */
	uint64_t file_bytes;    /* part of host_bytes that lies in offload_dir */
} kvrun_fetch_info;
#define KVRUN_FETCH_INFO_INIT                                                                                          \
	{ sizeof(kvrun_fetch_info), 0, 0, 0.0, 0, 0.0, 0.0, 0, 0 }
/* Counts since the session was opened, forked or returned to a checkpoint. Works also for a session in use. */
KVRUN_API kvrun_status kvrun_session_get_fetch_info(kvrun_session* session, kvrun_fetch_info* out);

/* The tokens in the cache, oldest first; buffers as in kvrun_tokenize(). Works also for a session in use. */
KVRUN_API kvrun_status kvrun_session_tokens(kvrun_session* session, uint32_t* out, size_t capacity, size_t* out_count);

/* Where the cache keeps a token. */
typedef enum KVRUN_INT_ENUM {
	KVRUN_TIER_F16 = 0,     /* f16: the token is recent, one of the first, or not yet packed */
	KVRUN_TIER_SALIENT = 1, /* chosen by the policy: packed with more bits, or left in f16 */
	KVRUN_TIER_REGULAR = 2, /* packed with fewer bits */
	KVRUN_TIER_EVICTED = 3  /* dropped */
} kvrun_tier;
/* The kvrun_tier of each token in one layer and kv head, oldest first; buffers as in kvrun_tokenize(). Works also
 * for a session in use: then for the tokens it had before the current work. */
KVRUN_API kvrun_status kvrun_session_tiers(kvrun_session* session, uint32_t layer, uint32_t kv_head, uint8_t* out,
                                           size_t capacity, size_t* out_count);

/* Writes the session to a file: the packed cache unchanged, the tokens, and `note` (note_length bytes of the caller;
 * NULL: none). After a failure the file is what it was before. */
KVRUN_API kvrun_status kvrun_session_save(kvrun_session* session, const char* path, const void* note,
                                          size_t note_length);
/* Opens a session from a file of this model, with the saved policy and context. On the same device the session
 * continues bit for bit as it would have. The message of KVRUN_EFORMAT, KVRUN_EUNSUPPORTED or KVRUN_EINVALID names the
 * field that is damaged, of a newer version, or of another model. */
KVRUN_API kvrun_status kvrun_session_restore(kvrun_session** out, kvrun_engine* engine, const char* path);
typedef struct {
	uint32_t struct_size;
	uint32_t checkpoints; /* as in kvrun_session_options; the file contains no checkpoints */
} kvrun_restore_options;
#define KVRUN_RESTORE_OPTIONS_INIT                                                                                     \
	{ sizeof(kvrun_restore_options), 0 }
/* The same with options. */
KVRUN_API kvrun_status kvrun_session_restore_with(kvrun_session** out, kvrun_engine* engine, const char* path,
                                                  const kvrun_restore_options* options);
/* The note in a session file. */
KVRUN_API kvrun_status kvrun_session_read_note(const char* path, void* out, size_t capacity, size_t* out_length);

/* ---- grammars: the form that an answer must have */

typedef struct kvrun_grammar kvrun_grammar;
typedef struct {
	uint32_t struct_size;
	const char* gbnf;        /* a grammar in llama.cpp's notation; its rule `root` is the answer; NULL: none */
	const char* json_schema; /* a JSON schema (draft 2020-12) that the answer satisfies; "{}": any JSON; NULL: none */
	/* The conversation that is answered. The grammar then applies after the template's reasoning, and allows calls of
	 * its tools in the template's form; if that form is not known, tools restrict nothing unless one must be called,
	 * which is KVRUN_EUNSUPPORTED. NULL: the grammar applies from the beginning, and there are no calls. */
	const kvrun_chat_options* chat;
	const char* tool_choice; /* "auto" or NULL: tools may be called; "required": at least one must be called; "none"; or
	                            the name of the tool that must be called */
	int one_call;            /* 1: at most one call in an answer */
	/* Called with a line about each keyword of json_schema that only limits values further and that a grammar cannot
	 * enforce, such as multipleOf: it is left out. NULL: the schema is refused. */
	void (*on_left_out)(const char* line, void* payload);
	void* payload;
} kvrun_grammar_options;
#define KVRUN_GRAMMAR_OPTIONS_INIT                                                                                     \
	{ sizeof(kvrun_grammar_options), NULL, NULL, NULL, NULL, 0, NULL, NULL }
/* One grammar serves any number of answers of its engine; what it computes for one answer speeds up later ones. If the
 * options restrict nothing, *out is NULL and the result KVRUN_OK. The message of KVRUN_EUNSUPPORTED and KVRUN_EFORMAT
 * names the line and column, or the JSON pointer, of what is wrong. */
KVRUN_API kvrun_status kvrun_grammar_new(kvrun_grammar** out, kvrun_engine* engine,
                                         const kvrun_grammar_options* options);
KVRUN_API void kvrun_grammar_free(kvrun_grammar* grammar);
/* Later answers of the session follow the grammar, each from its beginning, and end when it allows nothing more. NULL:
 * no grammar. Forks have no grammar. */
KVRUN_API kvrun_status kvrun_session_set_grammar(kvrun_session* session, kvrun_grammar* grammar);

/* ---- prompts and answers */

/* One token of the answer and the text that it completes: whole characters, no part of a stop string; may be "". token
 * KVRUN_NO_TOKEN: text that was held back until the end. */
typedef int (*kvrun_token_cb)(uint32_t token, const char* text, size_t length, void* payload);

typedef struct {
	uint32_t token;
	float bias; /* added to its logit; -INFINITY: the token is never chosen */
} kvrun_logit_bias;

typedef struct {
	uint32_t struct_size;
	uint32_t max_tokens;      /* of the answer; UINT32_MAX: until the model ends it or the context is full */
	double temperature;       /* sampling temperature; 0 is greedy */
	uint32_t top_k;           /* candidates: this many most likely tokens; 0: all */
	double top_p;             /* of these, the most likely whose probabilities sum to this; 1: all */
	double min_p;             /* of these, the ones at least this probable relative to the most likely; 0: all */
	double repeat_penalty;    /* divides the logits of recent tokens; 1: off */
	uint32_t repeat_last_n;   /* tokens that count as recent */
	uint64_t seed;            /* of sampling */
	const char* const* stops; /* (n_stops) texts that end the answer and are not part of it */
	size_t n_stops;
	int ignore_eos;               /* 1: go on after tokens that end an answer */
	int special;                  /* 1: control tokens of the answer are shown as text */
	kvrun_token_cb on_token;      /* NULL: none */
	kvrun_progress_cb on_prefill; /* of reading the prompt; NULL: none */
	void* payload;                /* of both */
	kvrun_canceller* canceller;   /* NULL: none */
	double presence_penalty;      /* subtracted from the logits of tokens that are in the answer; 0: off */
	double frequency_penalty;     /* the same, once per occurrence; 0: off */
	const kvrun_logit_bias* bias; /* (n_bias) changes of logits */
	size_t n_bias;
	/* Speculation: most tokens that are guessed for a decode step. The step computes the logits of all of them, limited
	 * by the engine's max_rows. Guesses that the sampler would not have chosen are removed, so an answer has the same
	 * tokens as without speculation, in fewer steps if guesses are right. A step may give several tokens; if a callback
	 * stops the answer at one of them, the later ones are already in the session. KVRUN_EUNSUPPORTED if the session
	 * cannot remove tokens (kvrun_session_info.takes_drafts). 0: no speculation. */
	uint32_t draft_max;
	/* Further samplers. Penalties come first, DRY among them; then top_n_sigma, top_k, typical_p, top_p, min_p and XTC
	 * remove tokens, in this order; last, logits are divided by the temperature. With temperature 0 the most likely
	 * token after the penalties is chosen. */
	double top_n_sigma; /* keeps logits within this many standard deviations of the largest; 0: all */
	double typical_p;   /* keeps tokens of typical surprise that hold this share (arXiv:2202.00666); 1: all */
	/* XTC: at each token, with this probability, the tokens at least as probable as the threshold are excluded, except
	 * for the least probable of them. Probability 0, or a threshold above 0.5: off. */
	double xtc_probability, xtc_threshold;
	/* Dynamic temperature, from temperature - range to temperature + range: by the entropy of what is kept, divided by
	 * the largest possible, to the power of the exponent. Range 0: off. */
	double dynatemp_range, dynatemp_exponent;
	/* DRY: the logit of a token that would lengthen a repetition of n tokens falls by multiplier * base^(n -
	 * dry_allowed_length), if n is at least dry_allowed_length. Multiplier 0: off. */
	double dry_multiplier, dry_base;
	uint32_t dry_allowed_length;
	uint32_t dry_penalty_last_n;     /* tokens in which repetitions are looked for; UINT32_MAX: all */
	const char* const* dry_breakers; /* (n_dry_breakers) texts at which a repetition ends; NULL: "\n", ":", "\"", "*" */
	size_t n_dry_breakers;
	/* Mirostat 1 or 2 (arXiv:2007.14966); 0: off. It keeps the mean of -log2 of the probability of chosen tokens near
	 * tau: a limit, first 2 * tau, moves at each token by eta times its distance from tau. top_n_sigma to
	 * dynatemp_exponent have no effect then, nor have top_k, top_p and min_p. */
	uint32_t mirostat;
	double mirostat_tau, mirostat_eta;
	/* Adaptive-p: of what is kept, tokens near this probability become the likeliest, and the target of each token
	 * makes up for those before, of which about 1 / (1 - decay) count. Negative: off. No effect with mirostat. */
	double adaptive_target, adaptive_decay;
	uint32_t min_keep; /* typical_p, top_p, min_p and XTC each leave at least this many tokens; 0: one. No effect with
	                      mirostat */
} kvrun_generate_options;
#define KVRUN_GENERATE_OPTIONS_INIT                                                                                    \
	{                                                                                                                  \
		sizeof(kvrun_generate_options), UINT32_MAX, 0.8, 40, 0.95, 0.05, 1.0, 64, 0, NULL, 0, 0, 0, NULL, NULL, NULL,  \
		    NULL, 0.0, 0.0, NULL, 0, 0, 0.0, 1.0, 0.0, 0.1, 0.0, 1.0, 0.0, 1.75, 2, UINT32_MAX, NULL, 0, 0, 5.0, 0.1,  \
		    -1.0, 0.9, 0                                                                                               \
	}

typedef enum KVRUN_INT_ENUM {
	KVRUN_STOP_LENGTH = 0,   /* max_tokens */
	KVRUN_STOP_CONTEXT = 1,  /* the context is full */
	KVRUN_STOP_END = 2,      /* the model ended its answer */
	KVRUN_STOP_STRING = 3,   /* a stop string appeared */
	KVRUN_STOP_CANCELLED = 4 /* a callback or kvrun_cancel() stopped it */
} kvrun_stop_reason;
typedef struct {
	uint32_t struct_size;
	kvrun_stop_reason reason;
	uint32_t prompt_tokens; /* of the prompt that was given */
	uint32_t prompt_cached; /* of these, in the cache: all, unless the call was cancelled */
	uint32_t answer_tokens;
	double prefill_seconds, decode_seconds;
	uint32_t stop;                     /* KVRUN_STOP_STRING: index in `stops`; else UINT32_MAX */
	uint32_t drafted, drafts_accepted; /* guessed tokens; those of them in the answer */
} kvrun_generate_result;
#define KVRUN_GENERATE_RESULT_INIT                                                                                     \
	{ sizeof(kvrun_generate_result), KVRUN_STOP_LENGTH, 0, 0, 0, 0.0, 0.0, UINT32_MAX, 0, 0 }

/* Appends a prompt to the session and generates an answer. out may be NULL. If it is cancelled or
 * stopped, the answer so far is in the session, and *out describes it although the status is not KVRUN_OK. The same
 * holds for KVRUN_ENOMEM, if the cache budget has no room for another token.
 *
 * The last token of an answer that ended by a limit is not read, nor is that of one which its grammar, a stop string
 * or a cancellation ended once it was chosen: kvrun_session_tokens() does not have it. Begin the next prompt with it,
 * unless it belongs to a stop string. */
KVRUN_API kvrun_status kvrun_generate(kvrun_session* session, const uint32_t* prompt, size_t count,
                                      const kvrun_generate_options* options, kvrun_generate_result* out);
/* The same for text. It is tokenised with bos if the session is empty and the model uses bos. */
KVRUN_API kvrun_status kvrun_generate_text(kvrun_session* session, const char* prompt,
                                           const kvrun_generate_options* options, kvrun_generate_result* out);

/* Appends a prompt without generating. logits: (vocab) of its last token, or NULL. Of the options, only on_prefill,
 * payload and canceller are used. */
KVRUN_API kvrun_status kvrun_prefill(kvrun_session* session, const uint32_t* prompt, size_t count,
                                     const kvrun_generate_options* options, float* logits);
/* Appends a prompt and gives the last hidden state of every token: the input of the output projection, after the final
 * norm. out: (count, dim), row by row; dim as in kvrun_engine_info. Of the options, only on_prefill, payload and
 * canceller are used. */
KVRUN_API kvrun_status kvrun_hidden_states(kvrun_session* session, const uint32_t* prompt, size_t count,
                                           const kvrun_generate_options* options, float* out);
typedef enum KVRUN_INT_ENUM {
	KVRUN_POOL_MODEL = 0, /* as the file says; KVRUN_POOL_MEAN if it does not */
	KVRUN_POOL_MEAN = 1,  /* the mean of all tokens */
	KVRUN_POOL_FIRST = 2, /* the first token */
	KVRUN_POOL_LAST = 3   /* the last token */
} kvrun_pooling;
/* The same, pooled to one vector for the whole prompt, an embedding: out (vector_dim), not normalised. Needs no memory
 * for the states of single tokens, however long the prompt is. */
KVRUN_API kvrun_status kvrun_embed(kvrun_session* session, const uint32_t* prompt, size_t count, kvrun_pooling pooling,
                                   const kvrun_generate_options* options, float* out);
/* Vectors of texts, each on its own, not normalised: out (n_texts, vector_dim). Works for every model; those that
 * encode process many texts at once. tokens: those of all texts, one text after the other; counts: (n_texts) how many
 * each has, at least one (kvrun_tokenize() with KVRUN_TOKENS_END). KVRUN_ECONTEXT if a text has more tokens than the
 * model takes. Of the options, only on_prefill, payload and canceller are used. */
KVRUN_API kvrun_status kvrun_embed_texts(kvrun_engine* engine, const uint32_t* tokens, const size_t* counts,
                                         size_t n_texts, kvrun_pooling pooling, const kvrun_generate_options* options,
                                         float* out);
/* How well documents answer a query, by the classifier of a reranker: out (n_documents), the larger the better; logits,
 * or of models that answer yes or no the probability of yes. *out_tokens, if not NULL: tokens of all pairs.
 * KVRUN_EUNSUPPORTED if the model has no classifier. Of the options, only on_prefill, payload and canceller are used.
 */
KVRUN_API kvrun_status kvrun_score_texts(kvrun_engine* engine, const char* query, const char* const* documents,
                                         size_t n_documents, const kvrun_generate_options* options, float* out,
                                         size_t* out_tokens);
/* One decode step for callers that sample themselves: appends tokens[i] to sessions[i], different sessions of one
 * engine, at most its max_rows. logits: (count, vocab). On failure no session has changed, and *out_row, if not
 * NULL, is the index of the session that failed, or count if none alone is the cause. KVRUN_EDEVICE is an exception: if
 * logits are not finite, the sessions have their new tokens; if the device failed, sessions of models with recurrent
 * layers may be empty. */
KVRUN_API kvrun_status kvrun_decode(kvrun_session* const* sessions, const uint32_t* tokens, size_t count, float* logits,
                                    size_t* out_row);

/* ---- batches: several answers at once; weights are read once for all of them */

typedef struct kvrun_batch kvrun_batch;
KVRUN_API kvrun_status kvrun_batch_new(kvrun_batch** out, kvrun_engine* engine);
/* Begins an answer; its session is in use until kvrun_batch_take(). Texts in the options are copied. */
KVRUN_API kvrun_status kvrun_batch_add(kvrun_batch* batch, kvrun_session* session, const uint32_t* prompt, size_t count,
                                       const kvrun_generate_options* options, uint32_t* out_id);
/* Begins another answer to the prompt of answer `of`, which is read once for both. The session must be a fork of that
 * answer's session, made before kvrun_batch_add(). Once the prompt is read it becomes a fork of it again, pages by
 * reference, and both answers go on independently. If the prompt of `of` is not read to its end, this answer ends as
 * `of` does. KVRUN_EINVALID if `of` is not reading its prompt, or the session is not such a fork. on_prefill is not
 * called, and the result's prompt_tokens is 0. */
KVRUN_API kvrun_status kvrun_batch_add_fork(kvrun_batch* batch, kvrun_session* session, uint32_t of,
                                            const kvrun_generate_options* options, uint32_t* out_id);
/* Called before each token of an answer is chosen, with the logits of all tokens (vocab). It may change them: -INFINITY
 * excludes a token; if none is left, or one is not a number, the answer ends with KVRUN_EINVALID. The calling thread
 * has its turn on the engine: functions that only read the engine or a session may be called, those that need the turn
 * give KVRUN_EBUSY. Waiting for another thread that uses the engine waits for ever. */
typedef int (*kvrun_logits_cb)(float* logits, size_t vocab, void* payload);
/* Sets the callback of an answer, from its next token on; NULL removes it. */
KVRUN_API kvrun_status kvrun_batch_on_logits(kvrun_batch* batch, uint32_t id, kvrun_logits_cb cb, void* payload);
/* Processes a slice of one prompt, and one decode step of every answer whose prompt has been read; callbacks run before
 * it returns. *out_active: number of unfinished answers. An error of one answer ends only that answer;
 * kvrun_batch_take() returns the error. */
KVRUN_API kvrun_status kvrun_batch_step(kvrun_batch* batch, size_t* out_active);
/* 1: the answer has ended, or does not exist; 0: it has not, or the batch is in use by another call. */
KVRUN_API int kvrun_batch_is_done(const kvrun_batch* batch, uint32_t id);
/* Removes an answer from the batch, cancelling it if it is unfinished, and releases its session. Returns what
 * kvrun_generate() would have returned. */
KVRUN_API kvrun_status kvrun_batch_take(kvrun_batch* batch, uint32_t id, kvrun_generate_result* out);
KVRUN_API void kvrun_batch_free(kvrun_batch* batch);

/* ---- memory plan, before anything is loaded */

typedef struct {
	uint32_t struct_size;
	const char* model_path;              /* only its header is read */
	const char* kv;                      /* policy; NULL: fp16 */
	uint32_t ctx;                        /* tokens, at most 16777216; 0: the trained context */
	uint64_t memory_bytes;               /* for everything; 0: the free device memory */
	uint32_t ubatch;                     /* as in kvrun_engine_options */
	const kvrun_device_options* device;  /* NULL: defaults */
	const kvrun_weight_options* weights; /* as in kvrun_engine_options; its kv and ctx are not read. NULL: defaults, but
	                                        where memory_bytes is given all weights lie on the device */
} kvrun_plan_options;
#define KVRUN_PLAN_OPTIONS_INIT                                                                                        \
	{ sizeof(kvrun_plan_options), NULL, NULL, 0, 0, 512, NULL, NULL }
typedef struct {
	uint32_t struct_size;
	int fits;     /* 1: weights, activations and a cache of ctx tokens fit, also while a prompt of ctx tokens is read */
	int evicts;   /* 1: the policy drops tokens */
	uint32_t ctx; /* tokens asked for */
	uint32_t ctx_train;    /* context the model was trained with */
	uint64_t most_tokens;  /* longest context that fits, at most ctx_train */
	uint64_t kept_tokens;  /* tokens of ctx that the cache keeps; fewer than ctx if the policy evicts */
	uint64_t memory_bytes; /* for everything: the sum of the next five */
	uint64_t weight_bytes; /* on the device */
	uint64_t activation_bytes;
	uint64_t prompt_bytes;       /* while a prompt of ctx tokens is read */
	uint64_t reserve_bytes;      /* left to the driver */
	uint64_t cache_bytes;        /* left for the cache; 0: the others take everything */
	uint64_t kv_bytes;           /* most of a cache of ctx tokens, as a prompt or one by one */
	uint64_t kv_f16_bytes;       /* of the same tokens in f16 */
	double stored_bits;          /* per element of the cache, including parameters and f16 tokens */
	uint64_t host_weight_bytes;  /* in host memory, read by the device over the bus */
	uint64_t device_token_bytes; /* of weights on the device that a token of a decode step reads */
	uint64_t host_token_bytes;   /* the same, over the bus */
} kvrun_plan;
#define KVRUN_PLAN_INIT                                                                                                \
	{ sizeof(kvrun_plan), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0 }
KVRUN_API kvrun_status kvrun_plan_memory(kvrun_plan* out, const kvrun_plan_options* options);

/* ---- initialisation without macros, for languages that have none
 *
 * Each function fills a struct of options or results with the values of its _INIT macro. struct_size: the size that the
 * caller allocated; fields that this version of the library does not know become 0. NULL: nothing happens. */

KVRUN_API void kvrun_device_options_init(kvrun_device_options* out, size_t struct_size);
KVRUN_API void kvrun_device_info_init(kvrun_device_info* out, size_t struct_size);
KVRUN_API void kvrun_engine_options_init(kvrun_engine_options* out, size_t struct_size);
KVRUN_API void kvrun_engine_info_init(kvrun_engine_info* out, size_t struct_size);
KVRUN_API void kvrun_host_memory_options_init(kvrun_host_memory_options* out, size_t struct_size);
KVRUN_API void kvrun_weight_options_init(kvrun_weight_options* out, size_t struct_size);
KVRUN_API void kvrun_chat_options_init(kvrun_chat_options* out, size_t struct_size);
KVRUN_API void kvrun_chat_features_init(kvrun_chat_features* out, size_t struct_size);
KVRUN_API void kvrun_reply_part_init(kvrun_reply_part* out, size_t struct_size);
KVRUN_API void kvrun_policy_info_init(kvrun_policy_info* out, size_t struct_size);
KVRUN_API void kvrun_session_options_init(kvrun_session_options* out, size_t struct_size);
KVRUN_API void kvrun_session_info_init(kvrun_session_info* out, size_t struct_size);
KVRUN_API void kvrun_fetch_info_init(kvrun_fetch_info* out, size_t struct_size);
KVRUN_API void kvrun_restore_options_init(kvrun_restore_options* out, size_t struct_size);
KVRUN_API void kvrun_grammar_options_init(kvrun_grammar_options* out, size_t struct_size);
KVRUN_API void kvrun_generate_options_init(kvrun_generate_options* out, size_t struct_size);
KVRUN_API void kvrun_generate_result_init(kvrun_generate_result* out, size_t struct_size);
KVRUN_API void kvrun_plan_options_init(kvrun_plan_options* out, size_t struct_size);
KVRUN_API void kvrun_plan_init(kvrun_plan* out, size_t struct_size);

#ifdef __cplusplus
}
#endif
#endif
