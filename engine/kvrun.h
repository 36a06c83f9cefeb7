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
 * - Nothing is printed, no signal handler is installed, no exception leaves, and no environment variable is read but
 *   those of the Vulkan loader that say where drivers are.
 * - Threads: an engine may be used by any number of threads at once; they take turns on the device, a piece of work of
 *   about 0.1 s at a time. A session and a batch belong to one thread at a time: a call on one that is in use, by
 *   another thread or by the call whose callback this is, gives KVRUN_EBUSY. Calls that only look at a session wait
 *   for the piece of work under way instead, and say so.
 * - Callbacks run on the thread that made the call, with no lock held unless they say otherwise. They end with the
 *   payload given beside them; a result other than 0 stops the call, which returns KVRUN_EUSER. */
#ifndef KVRUN_H
#define KVRUN_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(KVRUN_BUILD)
#define KVRUN_API __declspec(dllexport)
#elif defined(_WIN32)
#define KVRUN_API __declspec(dllimport)
#else
#define KVRUN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status, version, log */

#define KVRUN_ABI_VERSION 1 /* programs built with another number need to be built again */

#ifdef __cplusplus
#define KVRUN_INT_ENUM : int /* as in C: every int is a value, also of a later version */
#else
#define KVRUN_INT_ENUM
#endif

typedef enum KVRUN_INT_ENUM {
	KVRUN_OK = 0,
	KVRUN_EINVALID = -1,     /* an argument is wrong */
	KVRUN_ENOTFOUND = -2,    /* a named thing does not exist */
	KVRUN_EUNSUPPORTED = -3, /* well-formed, but nothing this version does */
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
/* What this thread's last call of a function that returns kvrun_status failed with; "" after a success. Never NULL;
 * valid until this thread's next call. */
KVRUN_API const char* kvrun_last_error(void);

/* level 0: warnings, 1: summaries, 2: every step, 3: every operation. line: `length` bytes without a newline, and a
 * terminating zero. Called by one thread at a time. */
typedef void (*kvrun_log_cb)(int level, const char* line, size_t length, void* payload);
/* Lines of levels up to max_level go to cb, from all engines of the process that have no log of their own
 * (kvrun_engine_options), and from calls that concern no engine; NULL: nowhere, as at the start. */
KVRUN_API kvrun_status kvrun_set_log(kvrun_log_cb cb, int max_level, void* payload);

/* ---- cancelling */

typedef struct kvrun_canceller kvrun_canceller;
KVRUN_API kvrun_status kvrun_canceller_new(kvrun_canceller** out);
/* Every call that was given this canceller stops within one submission to the device and returns KVRUN_ECANCELLED;
 * later ones at once, until kvrun_canceller_reset(). Safe from any thread and from a signal handler. */
KVRUN_API void kvrun_cancel(kvrun_canceller* canceller);
KVRUN_API void kvrun_canceller_reset(kvrun_canceller* canceller);
KVRUN_API int kvrun_canceller_is_set(const kvrun_canceller* canceller);
KVRUN_API void kvrun_canceller_free(kvrun_canceller* canceller);

/* ---- devices */

typedef struct {
	uint32_t struct_size;
	const char* backend;   /* only devices of this backend: "vulkan", "cpu"; NULL: all */
	const char* device;    /* index in the list of devices, part of a name, or a backend's name; NULL: the best GPU, a
	                          device on the host's processor only if there is no GPU */
	const char* cache_dir; /* folder for compiled shaders and for what is known of drivers: a few operations are
	                          compared with the cpu backend when a driver is used for the first time. NULL: none,
	                          shaders are compiled each time and nothing is compared */
	const char* probe; /* path of the program kvrun-probe, which tries out drivers in a process of its own, so that one
	                      that crashes is refused; NULL: drivers are loaded without */
	const char* validate;  /* Vulkan validation layer: "1", "sync", "gpu"; any message is an error. NULL: off */
	const char* dump;      /* FOLDER[:OPERATION[:LAYER]]: inputs and outputs of operations as .npy; NULL: nothing */
	const char* shaders;   /* folder with .spv files that replace the built-in shaders; NULL: none */
	const char* test_caps; /* clamps limits of the device, for tests; NULL: as they are */
	int check;             /* 1: run every operation on the cpu backend too, stop at the first that differs (slow) */
	int poison;            /* 1: fill new device memory with NaN, so that reads of unwritten memory show */
	int f32_matmul; /* 1: multiply and attend in f32 also where the device has matrix units, which take f16, or integer
	                 * dot products, which take int8 */
	double submit_ms; /* target time of one submission to the device */
	/* Called where the probe has found a driver that must be left out: is to make the environment variable
	 * VK_DRIVER_FILES these files. NULL: Vulkan is not used while such a driver is installed. */
	void (*set_driver_files)(const char* files, void* payload);
	void* payload;
} kvrun_device_options;
#define KVRUN_DEVICE_OPTIONS_INIT                                                                                      \
	{ sizeof(kvrun_device_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 100.0, NULL, NULL }

typedef struct {
	uint32_t struct_size;
	int usable;                /* 0: `refused` says why it cannot be used */
	int is_cpu;                /* runs on the host's processor */
	const char* backend;       /* "vulkan", "cpu" */
	const char* name;          /* of the device */
	const char* driver;        /* name and version */
	const char* type;          /* "discrete", "integrated", "virtual", "cpu" */
	const char* refused;       /* "" if it is usable */
	uint64_t memory_bytes;     /* in all */
	uint64_t free_bytes;       /* what kvrun may still take */
	uint64_t max_buffer_bytes; /* largest allocation */
} kvrun_device_info;
#define KVRUN_DEVICE_INFO_INIT                                                                                         \
	{ sizeof(kvrun_device_info), 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0 }

typedef struct kvrun_devices kvrun_devices;
/* Finds all devices, usable ones first, the best one first of all. Starts no engine. */
KVRUN_API kvrun_status kvrun_devices_list(kvrun_devices** out, const kvrun_device_options* options);
KVRUN_API size_t kvrun_devices_count(const kvrun_devices* devices);
KVRUN_API kvrun_status kvrun_devices_get(const kvrun_devices* devices, size_t index, kvrun_device_info* out);
KVRUN_API void kvrun_devices_free(kvrun_devices* devices);

/* ---- engines: a model on a device */

/* Share of the work that is done, 0 to 1, and the seconds that are left at the pace so far, 0 if unknown. */
typedef int (*kvrun_progress_cb)(double done, double seconds_left, void* payload);

/* Which weights lie in host memory, where the device reads them over the bus: of experts a token reads a few, of the
 * embedding a row. On devices that share the host's memory all lie there. */
#define KVRUN_ALL_LAYERS UINT32_MAX
typedef struct {
	uint32_t struct_size;
	int no_fit;              /* 1: no more leave the device than the fields below say; 0: as much more as makes room for
	                            kv_budget_bytes, or for a cache of ctx tokens under kv */
	uint64_t budget_bytes;   /* most bytes of weights on the device; 0: no limit */
	uint32_t gpu_layers;     /* the last so many layers stay on the device, one more than there are: the output, too */
	uint32_t cpu_moe_layers; /* experts of the first so many layers lie in host memory */
	uint32_t ctx;            /* tokens; 0: 8192, or what the model was trained for */
	const char* kv;          /* policies, comma-separated; NULL: fp16 */
} kvrun_weight_options;
#define KVRUN_WEIGHT_OPTIONS_INIT                                                                                      \
	{ sizeof(kvrun_weight_options), 0, 0, KVRUN_ALL_LAYERS, 0, 0, NULL }

typedef struct kvrun_engine kvrun_engine;
typedef struct {
	uint32_t struct_size;
	const char* model_path;             /* a .gguf file, or the first part of a split one */
	const kvrun_device_options* device; /* NULL: defaults */
	uint64_t kv_budget_bytes;           /* for the caches of all sessions; 0: what the device has free */
	uint32_t ubatch;                    /* most prompt tokens that go through a layer together; affects speed only */
	uint32_t prefill_block;             /* longest part of a prompt taken layer by layer; 0: what memory allows */
	uint32_t max_rows;                  /* most sessions in one decode step, 1 to 64 */
	kvrun_progress_cb progress;         /* of loading; NULL: none */
	void* payload;                      /* of progress */
	kvrun_canceller* canceller;         /* stops loading; NULL: none */
	kvrun_log_cb log;                   /* lines of this engine, of levels up to log_level; NULL: kvrun_set_log()'s */
	int log_level;
	void* log_payload;
	const kvrun_weight_options* weights; /* NULL: defaults */
	const char* draft_model; /* path of a small .gguf file with the same vocabulary, which guesses tokens for
	                            kvrun_generate_options.draft_max; NULL: they are looked up in the text. Its weights and
	                            its caches are beside this engine's, on the same device */
} kvrun_engine_options;
#define KVRUN_ENGINE_OPTIONS_INIT                                                                                      \
	{ sizeof(kvrun_engine_options), NULL, NULL, 0, 512, 0, 8, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL }

KVRUN_API kvrun_status kvrun_engine_open(kvrun_engine** out, const kvrun_engine_options* options);
/* The engine itself ends when its last session and batch are freed too. */
KVRUN_API void kvrun_engine_free(kvrun_engine* engine);

typedef struct {
	uint32_t struct_size;
	uint32_t vocab; /* tokens of the vocabulary */
	uint32_t n_layers, n_heads, n_kv_heads, head_dim, dim;
	uint32_t ctx_train;       /* context the model was trained with, in tokens */
	uint32_t bos, eos;        /* KVRUN_NO_TOKEN: it has none */
	int adds_bos;             /* a text begins with bos */
	int has_chat_template;    /* the file has one */
	const char* architecture; /* "llama" */
	const char* name;         /* as the file says; may be "" */
	const char *device_name, *device_driver, *backend;
	uint64_t weight_bytes;      /* on the device */
	uint64_t activation_bytes;  /* on the device, beside weights and caches, now */
	uint64_t kv_budget_bytes;   /* for the caches of all sessions */
	uint64_t kv_used_bytes;     /* of them, allocated now */
	uint32_t max_rows;          /* most sessions in one decode step */
	int device_is_cpu;          /* it runs on the host's processor: the cpu backend, or a software driver */
	uint64_t host_weight_bytes; /* in host memory, read by the device over the bus */
	const char* weights;        /* one line on what lies where; "": all weights are on the device */
} kvrun_engine_info;
#define KVRUN_ENGINE_INFO_INIT                                                                                         \
	{                                                                                                                  \
		sizeof(kvrun_engine_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, \
		    NULL                                                                                                       \
	}
KVRUN_API kvrun_status kvrun_engine_get_info(kvrun_engine* engine, kvrun_engine_info* out);

typedef struct {
	uint32_t struct_size;
	uint64_t budget_bytes;   /* most memory of the machine, for all sessions; 0: a quarter of what it has */
	const char* offload_dir; /* folder for a file without a name that takes what is over it; NULL: none */
} kvrun_host_memory_options;
#define KVRUN_HOST_MEMORY_OPTIONS_INIT                                                                                 \
	{ sizeof(kvrun_host_memory_options), 0, NULL }
/* Where policies that fetch keep every token in f16 as well. Holds for what sessions take from now on. Without the
 * folder a session that cannot have its context in the budget is not opened; with it, KVRUN_EIO ends a call when the
 * disk is full or fails, with the answer so far. */
KVRUN_API kvrun_status kvrun_engine_set_host_memory(kvrun_engine* engine, const kvrun_host_memory_options* options);

/* Metadata of the model's file, in its order. value: numbers and flags in decimal, text as it is, an array as its type
 * and length: "[string x 32000]". */
KVRUN_API size_t kvrun_metadata_count(kvrun_engine* engine);
KVRUN_API kvrun_status kvrun_metadata_get(kvrun_engine* engine, size_t index, const char** out_key,
                                          const char** out_value);

/* ---- tokens */

#define KVRUN_NO_TOKEN UINT32_MAX

enum {
	KVRUN_TOKENS_NO_BOS = 1, /* leave out the token that begins a text */
	KVRUN_TOKENS_SPECIAL =
	    2 /* control tokens that are written out become tokens, and are shown; not for a user's text */
};
/* Writes the tokens of text (length bytes) to out and their number to *out_count. KVRUN_EBUFFER: there are more than
 * capacity, *out_count says how many. */
KVRUN_API kvrun_status kvrun_tokenize(kvrun_engine* engine, const char* text, size_t length, uint32_t flags,
                                      uint32_t* out, size_t capacity, size_t* out_count);
/* The text of tokens: *out_length bytes and a terminating zero, for which capacity must have room. */
KVRUN_API kvrun_status kvrun_detokenize(kvrun_engine* engine, const uint32_t* tokens, size_t count, uint32_t flags,
                                        char* out, size_t capacity, size_t* out_length);

/* ---- chat templates */

typedef struct {
	const char* role;    /* "system", "user", "assistant", "tool" */
	const char* content; /* the text */
} kvrun_message;
typedef struct {
	uint32_t struct_size;
	const kvrun_message* messages; /* (n_messages), or NULL and messages_json */
	size_t n_messages;
	const char* messages_json;  /* array of messages as OpenAI's API has them, with content, tool_calls... */
	const char* tools_json;     /* array of tool definitions; NULL: none */
	const char* variables_json; /* object of more variables for the template: {"enable_thinking": false}; NULL: none */
	const char* template_name;  /* a template in the file or a built-in one; NULL: the file's own */
	const char* template_text;  /* a Jinja template instead; NULL: by name */
	int no_answer;              /* 1: do not end with the beginning of an answer */
} kvrun_chat_options;
#define KVRUN_CHAT_OPTIONS_INIT                                                                                        \
	{ sizeof(kvrun_chat_options), NULL, 0, NULL, NULL, NULL, NULL, NULL, 0 }
/* The tokens of a conversation. Control tokens come from the template only: a message that spells one stays text. No
 * template is assumed: KVRUN_ENOTFOUND lists the names that can be given where the file has none. */
KVRUN_API kvrun_status kvrun_chat_tokens(kvrun_engine* engine, const kvrun_chat_options* options, uint32_t* out,
                                         size_t capacity, size_t* out_count);
/* The same as text: *out_length bytes and a terminating zero. */
KVRUN_API kvrun_status kvrun_chat_text(kvrun_engine* engine, const kvrun_chat_options* options, char* out,
                                       size_t capacity, size_t* out_length);

/* Names that template_name can have: those in the file, then the built-in ones. *out is "" beyond the last. */
KVRUN_API kvrun_status kvrun_chat_template_name(kvrun_engine* engine, size_t index, char* out, size_t capacity,
                                                size_t* out_length);

typedef struct {
	uint32_t struct_size;
	int system_role;     /* a system message reaches the prompt */
	int tools;           /* definitions of tools reach the prompt */
	int thinking_switch; /* the variable enable_thinking is read */
	int special_markers; /* 1: calls of tools are marked by control tokens: generate with special = 1 where there are
	                        tools; 2: always, answers are on channels between control tokens */
	int reasoning;       /* answers may have a part that is reasoning */
} kvrun_chat_features;
#define KVRUN_CHAT_FEATURES_INIT                                                                                       \
	{ sizeof(kvrun_chat_features), 0, 0, 0, 0, 0 }
/* What the template of these options can do; their messages may be missing. */
KVRUN_API kvrun_status kvrun_chat_get_features(kvrun_engine* engine, const kvrun_chat_options* options,
                                               kvrun_chat_features* out);

/* An answer to a conversation, as it comes: what is shown, what is reasoning, which tools it calls. */
typedef struct kvrun_reply kvrun_reply;
typedef struct {
	uint32_t struct_size;
	const char* content;     /* to be shown; these texts are valid until the next call for this reply, without the
	                            zero bytes that a model may write */
	const char* reasoning;   /* may be shown in another way */
	const char* calls;       /* JSON array of calls of tools that have ended, as OpenAI's API has them; "[]": none */
	const char* call_deltas; /* JSON array of what is new of calls, ended or not, as OpenAI's API streams them: index,
	                            with the first also id and name, and more text of the arguments; "[]": nothing */
} kvrun_reply_part;
#define KVRUN_REPLY_PART_INIT                                                                                          \
	{ sizeof(kvrun_reply_part), NULL, NULL, NULL, NULL }
/* options: those of the prompt that is answered. */
KVRUN_API kvrun_status kvrun_reply_new(kvrun_reply** out, kvrun_engine* engine, const kvrun_chat_options* options);
/* The next piece of the answer's text. What may yet become a marker or a call is held back. Calls of functions that
 * tools_json has are told from the beginning of their arguments on: if the answer then ends early or goes wrong, these
 * arguments are no whole JSON text. */
KVRUN_API kvrun_status kvrun_reply_push(kvrun_reply* reply, const char* text, size_t length, kvrun_reply_part* out);
/* The answer has ended: what was held back. */
KVRUN_API kvrun_status kvrun_reply_finish(kvrun_reply* reply, kvrun_reply_part* out);
KVRUN_API void kvrun_reply_free(kvrun_reply* reply);

/* ---- KV-cache policies */

typedef struct {
	uint32_t struct_size;
	const char* name;    /* "kivi2"; options may follow it: "kivi2,recent=64" */
	const char* summary; /* one line for a list of choices */
	const char* source;  /* paper; "": none */
} kvrun_policy_info;
#define KVRUN_POLICY_INFO_INIT                                                                                         \
	{ sizeof(kvrun_policy_info), NULL, NULL, NULL }
/* The policies there are, in the order of kvrun help plan. Their texts are valid for ever. */
KVRUN_API size_t kvrun_policy_count(void);
KVRUN_API kvrun_status kvrun_policy_get(size_t index, kvrun_policy_info* out);

/* ---- sessions: one sequence of tokens under one KV-cache policy */

typedef struct kvrun_session kvrun_session;
typedef struct {
	uint32_t struct_size;
	const char* kv; /* KV-cache policy, as of `kvrun run --kv`: "fp16", "kivi2", "zipcache,ratio=0.4"; NULL: fp16 */
	uint32_t ctx;   /* longest sequence in tokens; 0: what fits, at most the trained context */
	uint32_t checkpoints; /* most states kept to go back to, one at the end of each prompt: kvrun_session_truncate() */
	uint64_t seed;        /* of the policy's random choices */
} kvrun_session_options;
#define KVRUN_SESSION_OPTIONS_INIT                                                                                     \
	{ sizeof(kvrun_session_options), NULL, 0, 0, 1 }

KVRUN_API kvrun_status kvrun_session_open(kvrun_session** out, kvrun_engine* engine,
                                          const kvrun_session_options* options);
KVRUN_API void kvrun_session_free(kvrun_session* session);
/* A session with the same tokens that goes its own way from here; pages of the cache are shared until one writes. */
KVRUN_API kvrun_status kvrun_session_fork(kvrun_session** out, kvrun_session* session);
/* Forgets all tokens from number n_tokens on. Possible where nothing behind that position has been compressed or
 * dropped, and at checkpoints; else KVRUN_EINVALID, and kvrun_session_exact_position() is the nearest such position
 * before: truncate to that and give the rest again. */
KVRUN_API kvrun_status kvrun_session_truncate(kvrun_session* session, uint32_t n_tokens);
KVRUN_API kvrun_status kvrun_session_exact_position(kvrun_session* session, uint32_t n_tokens, uint32_t* out);
/* Goes back to the nearest position that begins as `tokens` do and leaves at least one of them; *out_kept says how many
 * of them the session then holds. */
KVRUN_API kvrun_status kvrun_session_keep_common(kvrun_session* session, const uint32_t* tokens, size_t count,
                                                 uint32_t* out_kept);

typedef struct {
	uint32_t struct_size;
	uint32_t n_tokens;       /* in the cache */
	uint32_t ctx;            /* longest sequence in tokens */
	const char* kv;          /* policy */
	uint64_t f16_bytes;      /* of the cache: tokens in full precision */
	uint64_t code_bytes;     /* packed codes */
	uint64_t param_bytes;    /* scales and zero points */
	uint64_t overhead_bytes; /* empty slots of pages, tables, validity bitmaps, room for what is fetched */
	uint64_t total_bytes;    /* all of it */
	uint64_t f16_equivalent; /* what a plain f16 cache of as many tokens takes */
	int takes_drafts; /* answers may speculate (kvrun_generate_options.draft_max): the policy and the model can take
	                     tokens back */
} kvrun_session_info;
#define KVRUN_SESSION_INFO_INIT                                                                                        \
	{ sizeof(kvrun_session_info), 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0 }
/* Also of a session that is in use. */
KVRUN_API kvrun_status kvrun_session_get_info(kvrun_session* session, kvrun_session_info* out);

typedef struct {
	uint32_t struct_size;
	uint32_t fetch;         /* tokens read in f16 by each step, per layer and kv head; 0: the policy fetches none */
	uint64_t steps;         /* decode steps that the following are sums of */
	double f16_share;       /* of each step's attention, the share on tokens that were in f16 */
	uint64_t fetched_bytes; /* moved from host memory */
	double hidden_seconds;  /* the host gathered them while the device was at work */
	double open_seconds;    /* ... and while it waited */
	uint64_t host_bytes;    /* of the tokens in f16, now; forks share them until one writes */
	uint64_t file_bytes;    /* of these, in the folder that kvrun_host_memory_options names */
} kvrun_fetch_info;
#define KVRUN_FETCH_INFO_INIT                                                                                          \
	{ sizeof(kvrun_fetch_info), 0, 0, 0.0, 0, 0.0, 0.0, 0, 0 }
/* Since the session was opened, forked or went back to a checkpoint. Also of a session that is in use. */
KVRUN_API kvrun_status kvrun_session_get_fetch_info(kvrun_session* session, kvrun_fetch_info* out);

/* The tokens in the cache, oldest first; as kvrun_tokenize(). Also of a session that is in use. */
KVRUN_API kvrun_status kvrun_session_tokens(kvrun_session* session, uint32_t* out, size_t capacity, size_t* out_count);

/* Where the cache keeps a token. */
typedef enum KVRUN_INT_ENUM {
	KVRUN_TIER_F16 = 0,     /* in full precision, for being recent, first, or not yet packed */
	KVRUN_TIER_SALIENT = 1, /* chosen by the policy: packed in more bits, or left in full precision */
	KVRUN_TIER_REGULAR = 2, /* packed in fewer bits */
	KVRUN_TIER_EVICTED = 3  /* dropped */
} kvrun_tier;
/* The kvrun_tier of each token in one layer and kv head, oldest first; as kvrun_tokenize(). Also of a session that is
 * in use: of the tokens it had before the piece of work under way. */
KVRUN_API kvrun_status kvrun_session_tiers(kvrun_session* session, uint32_t layer, uint32_t kv_head, uint8_t* out,
                                           size_t capacity, size_t* out_count);

/* Writes the session to a file: the packed cache as it lies, the tokens, and `note` (note_length bytes of the caller's,
 * NULL: none). The file is complete or, after a failure, what it was before. */
KVRUN_API kvrun_status kvrun_session_save(kvrun_session* session, const char* path, const void* note,
                                          size_t note_length);
/* Opens a session from a file of this model, with the policy and context it had. Its next token is, bit for bit, the
 * one it would have had, on the same device. KVRUN_EFORMAT, KVRUN_EUNSUPPORTED or KVRUN_EINVALID name the field that is
 * damaged, newer or of another model. */
KVRUN_API kvrun_status kvrun_session_restore(kvrun_session** out, kvrun_engine* engine, const char* path);
typedef struct {
	uint32_t struct_size;
	uint32_t checkpoints; /* as of kvrun_session_options; those the session had are not in the file */
} kvrun_restore_options;
#define KVRUN_RESTORE_OPTIONS_INIT                                                                                     \
	{ sizeof(kvrun_restore_options), 0 }
/* The same with options. */
KVRUN_API kvrun_status kvrun_session_restore_with(kvrun_session** out, kvrun_engine* engine, const char* path,
                                                  const kvrun_restore_options* options);
/* The note in a session file. */
KVRUN_API kvrun_status kvrun_session_read_note(const char* path, void* out, size_t capacity, size_t* out_length);

/* ---- grammars: what an answer may look like */

typedef struct kvrun_grammar kvrun_grammar;
typedef struct {
	uint32_t struct_size;
	const char* gbnf; /* a grammar in llama.cpp's notation, whose rule `root` is the answer; NULL: none */
	const char*
	    json_schema; /* a JSON schema (draft 2020-12): the answer is one of its values; "{}": any JSON; NULL: none */
	/* The conversation that is answered. The grammar then begins where its template's reasoning ends, and takes calls
	 * of its tools as the template writes them. NULL: the answer begins with the grammar, and has no calls. */
	const kvrun_chat_options* chat;
	const char* tool_choice; /* "auto" or NULL: chat's tools may be called; "required": at least one must; "none"; else
	                            the name of the one that must */
	int one_call;            /* 1: at most one call in an answer */
} kvrun_grammar_options;
#define KVRUN_GRAMMAR_OPTIONS_INIT                                                                                     \
	{ sizeof(kvrun_grammar_options), NULL, NULL, NULL, NULL, 0 }
/* One grammar serves any number of answers of its engine, and remembers what it has found out. *out is NULL, and the
 * result KVRUN_OK, where these options ask for nothing that an answer could break. KVRUN_EUNSUPPORTED and
 * KVRUN_EFORMAT name what is wrong with a line and column, or a JSON pointer; no feature of a schema is ignored. */
KVRUN_API kvrun_status kvrun_grammar_new(kvrun_grammar** out, kvrun_engine* engine,
                                         const kvrun_grammar_options* options);
KVRUN_API void kvrun_grammar_free(kvrun_grammar* grammar);
/* Answers of the session that begin from now on follow the grammar, each from its beginning, and end where nothing can
 * follow; NULL: they follow none. Forks follow none. */
KVRUN_API kvrun_status kvrun_session_set_grammar(kvrun_session* session, kvrun_grammar* grammar);

/* ---- prompts and answers */

/* One token of the answer and the text that became certain with it: whole characters, no part of a stop string; may be
 * "". token KVRUN_NO_TOKEN: text that was held back until the end. */
typedef int (*kvrun_token_cb)(uint32_t token, const char* text, size_t length, void* payload);

typedef struct {
	uint32_t token;
	float bias; /* added to its logit; -INFINITY: it is never chosen */
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
	double presence_penalty;      /* subtracted from the logits of tokens that the answer has; 0: off */
	double frequency_penalty;     /* the same, for each time it has them; 0: off */
	const kvrun_logit_bias* bias; /* (n_bias) tokens that are more or less likely than the model has them */
	size_t n_bias;
	/* Speculation: most tokens that are guessed for a decode step, which then computes the logits of all of them, as
	 * far as the engine's max_rows has room. What the sampler would not have chosen is taken back, so an answer has the
	 * same tokens as without, in fewer steps where guesses are right. A step may give several tokens; if a callback
	 * stops the answer at one of them, those behind it are in the session. KVRUN_EUNSUPPORTED where the session can
	 * take nothing back. 0: none. */
	uint32_t draft_max;
} kvrun_generate_options;
#define KVRUN_GENERATE_OPTIONS_INIT                                                                                    \
	{                                                                                                                  \
		sizeof(kvrun_generate_options), UINT32_MAX, 0.8, 40, 0.95, 0.05, 1.0, 64, 0, NULL, 0, 0, 0, NULL, NULL, NULL,  \
		    NULL, 0.0, 0.0, NULL, 0, 0                                                                                 \
	}

typedef enum KVRUN_INT_ENUM {
	KVRUN_STOP_LENGTH = 0,   /* max_tokens */
	KVRUN_STOP_CONTEXT = 1,  /* the context is full */
	KVRUN_STOP_END = 2,      /* the model ended its answer */
	KVRUN_STOP_STRING = 3,   /* a stop string appeared */
	KVRUN_STOP_CANCELLED = 4 /* by a callback or kvrun_cancel() */
} kvrun_stop_reason;
typedef struct {
	uint32_t struct_size;
	kvrun_stop_reason reason;
	uint32_t prompt_tokens; /* given */
	uint32_t prompt_cached; /* of them, in the cache: all, unless it was cancelled */
	uint32_t answer_tokens;
	double prefill_seconds, decode_seconds;
	uint32_t stop;                     /* KVRUN_STOP_STRING: which of `stops` appeared; else UINT32_MAX */
	uint32_t drafted, drafts_accepted; /* tokens that were guessed, and those of them that the answer took */
} kvrun_generate_result;
#define KVRUN_GENERATE_RESULT_INIT                                                                                     \
	{ sizeof(kvrun_generate_result), KVRUN_STOP_LENGTH, 0, 0, 0, 0.0, 0.0, UINT32_MAX, 0, 0 }

/* Appends a prompt to the session and generates an answer. out may be NULL. When it was cancelled or stopped, the
 * answer so far is in the session and *out says so, beside the status; so too with KVRUN_ENOMEM, when the cache budget
 * has no room for another token. */
KVRUN_API kvrun_status kvrun_generate(kvrun_session* session, const uint32_t* prompt, size_t count,
                                      const kvrun_generate_options* options, kvrun_generate_result* out);
/* The same for text, tokenised with bos where the session is empty and the model wants it. */
KVRUN_API kvrun_status kvrun_generate_text(kvrun_session* session, const char* prompt,
                                           const kvrun_generate_options* options, kvrun_generate_result* out);

/* Appends a prompt without generating. logits: (vocab) of its last token; NULL: not wanted. Of the options, on_prefill,
 * payload and canceller count. */
KVRUN_API kvrun_status kvrun_prefill(kvrun_session* session, const uint32_t* prompt, size_t count,
                                     const kvrun_generate_options* options, float* logits);
/* Appends a prompt, and gives the model's last hidden state of every token: what the output projection reads, after the
 * final norm. out: (count, dim), row by row; dim as of kvrun_engine_info. Of the options, on_prefill, payload and
 * canceller count. */
KVRUN_API kvrun_status kvrun_hidden_states(kvrun_session* session, const uint32_t* prompt, size_t count,
                                           const kvrun_generate_options* options, float* out);
typedef enum KVRUN_INT_ENUM {
	KVRUN_POOL_MODEL = 0, /* as the file says; KVRUN_POOL_MEAN where it does not */
	KVRUN_POOL_MEAN = 1,  /* the mean of all tokens */
	KVRUN_POOL_FIRST = 2, /* the first token */
	KVRUN_POOL_LAST = 3   /* the last token */
} kvrun_pooling;
/* The same as one vector for the whole prompt, an embedding: out (dim), not normalised. Takes no memory for the single
 * states, however long the prompt is. */
KVRUN_API kvrun_status kvrun_embed(kvrun_session* session, const uint32_t* prompt, size_t count, kvrun_pooling pooling,
                                   const kvrun_generate_options* options, float* out);
/* One decode step for callers that sample themselves: appends tokens[i] to sessions[i], different sessions of one
 * engine, at most its max_rows. logits: (count, vocab). On failure no session has changed, and *out_row, which may be
 * NULL, is the row that could not go on, or count; but for KVRUN_EDEVICE: sessions then have their token, as where
 * logits are not finite, or are empty. */
KVRUN_API kvrun_status kvrun_decode(kvrun_session* const* sessions, const uint32_t* tokens, size_t count, float* logits,
                                    size_t* out_row);

/* ---- batches: several answers at once; weights are read once for all of them */

typedef struct kvrun_batch kvrun_batch;
KVRUN_API kvrun_status kvrun_batch_new(kvrun_batch** out, kvrun_engine* engine);
/* Begins an answer; its session is in use until kvrun_batch_take(). Texts of the options are copied. */
KVRUN_API kvrun_status kvrun_batch_add(kvrun_batch* batch, kvrun_session* session, const uint32_t* prompt, size_t count,
                                       const kvrun_generate_options* options, uint32_t* out_id);
/* Begins another answer to the prompt of answer `of`, which is read once for both. The session must be a fork of that
 * answer's session, made before kvrun_batch_add(). Once the prompt is read it becomes a fork of it again, pages by
 * reference, and both answers go on independently. If the prompt of `of` is not read to its end, this answer ends as
 * `of` does. KVRUN_EINVALID if `of` is not reading its prompt, or the session is not such a fork. on_prefill is not
 * called, and the result's prompt_tokens is 0. */
KVRUN_API kvrun_status kvrun_batch_add_fork(kvrun_batch* batch, kvrun_session* session, uint32_t of,
                                            const kvrun_generate_options* options, uint32_t* out_id);
/* Before each token of an answer is chosen, with the logits of all tokens (vocab), which it may change: -INFINITY rules
 * a token out. Runs while its thread has its turn on the engine: it must call no function for this engine. */
typedef int (*kvrun_logits_cb)(float* logits, size_t vocab, void* payload);
/* Has cb called for an answer of the batch from the next token on; NULL: no more. */
KVRUN_API kvrun_status kvrun_batch_on_logits(kvrun_batch* batch, uint32_t id, kvrun_logits_cb cb, void* payload);
/* A piece of one prompt and one token of every answer under way; callbacks run before it returns. *out_active: answers
 * that are still under way. What goes wrong with one answer ends that one: kvrun_batch_take() returns it. */
KVRUN_API kvrun_status kvrun_batch_step(kvrun_batch* batch, size_t* out_active);
KVRUN_API int kvrun_batch_is_done(const kvrun_batch* batch, uint32_t id);
/* Ends an answer, cancelled if it is under way, and gives its session back. Returns what kvrun_generate() would have.
 */
KVRUN_API kvrun_status kvrun_batch_take(kvrun_batch* batch, uint32_t id, kvrun_generate_result* out);
KVRUN_API void kvrun_batch_free(kvrun_batch* batch);

/* ---- memory plan, before anything is loaded */

typedef struct {
	uint32_t struct_size;
	const char* model_path;             /* only its header is read */
	const char* kv;                     /* policy; NULL: fp16 */
	uint32_t ctx;                       /* tokens; 0: the trained context */
	uint64_t memory_bytes;              /* for everything; 0: what the device has free */
	uint32_t ubatch;                    /* as the engine will have it */
	const kvrun_device_options* device; /* NULL: defaults */
} kvrun_plan_options;
#define KVRUN_PLAN_OPTIONS_INIT                                                                                        \
	{ sizeof(kvrun_plan_options), NULL, NULL, 0, 0, 512, NULL }
typedef struct {
	uint32_t struct_size;
	int fits;              /* weights, activations and a cache of ctx tokens fit, a prompt as long among them */
	int evicts;            /* the policy drops tokens */
	uint32_t ctx;          /* tokens asked for */
	uint32_t ctx_train;    /* context the model was trained with */
	uint64_t most_tokens;  /* longest context that fits, at most ctx_train */
	uint64_t kept_tokens;  /* tokens of ctx that the cache keeps: fewer where the policy evicts */
	uint64_t memory_bytes; /* for everything: the sum of the next five */
	uint64_t weight_bytes;
	uint64_t activation_bytes;
	uint64_t prompt_bytes;  /* while a prompt of ctx tokens is read */
	uint64_t reserve_bytes; /* left to the driver */
	uint64_t cache_bytes;   /* left for the cache; 0: the others take it all */
	uint64_t kv_bytes;      /* that a cache of ctx tokens needs */
	uint64_t kv_f16_bytes;  /* of the same as plain f16 */
	double stored_bits;     /* per element of the cache, everything counted */
} kvrun_plan;
#define KVRUN_PLAN_INIT                                                                                                \
	{ sizeof(kvrun_plan), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0 }
KVRUN_API kvrun_status kvrun_plan_memory(kvrun_plan* out, const kvrun_plan_options* options);

/* ---- structs without macros: for languages that have none

 * Each fills a struct of options or results with what its _INIT macro has. struct_size: what the caller has room for;
 * fields that this version of the library does not know become 0. NULL: nothing happens. */

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
