// What a chat template can do, found out by rendering small conversations with it, and messages made to fit it.
#pragma once
#include "models/chat/template.h"

namespace kvrun {

// How a model writes calls of tools into its answer.
enum class ToolFormat : uint8_t {
	None,
	Hermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>                      (Hermes, Qwen)
	Mistral,  // [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}, or [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
	DeepSeek, // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name\n```json\n{...}\n```<｜tool▁call▁end｜>
	Llama3,   // the whole answer is {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|>
	QwenXml,  // <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>
	          // (Qwen3-Coder)
	Pythonic, // the whole answer is [name(key=value, ...), ...], perhaps between markers            (Llama 4, LFM2,
	          // OLMo 3)
	Gemma,    // <start_function_call>call:name{key:<escape>text<escape>,n:3}<end_function_call>     (FunctionGemma)
	Glm,      // <tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>  (GLM 4.5)
	Granite,  // <|tool_call|>[{"name": ..., "arguments": {...}}, ...]                               (Granite 3)
	Harmony,  // <|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>   (gpt-oss)
	CommandR, // <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>
	Phi4,     // <|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>
	Kimi, // <|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
	      // <|tool_calls_section_end|>                                                          (Kimi K2)
};
const char* tool_format_name(ToolFormat);

struct ChatFeatures {
	bool system_role = false;      // a system message reaches the prompt
	bool tools = false;            // definitions of tools reach the prompt
	bool tool_calls = false;       // calls in earlier answers reach the prompt
	bool text_content = false;     // content may be a string
	bool part_content = false;     // content may be an array of parts
	bool object_arguments = false; // arguments of calls are wanted as objects, else as JSON in a string
	bool null_content = false;     // an answer that only calls tools is wanted with content null, else with ""
	bool thinking_switch = false;  // reads the variable enable_thinking
	ToolFormat tool_format = ToolFormat::None;
	std::string tool_begin, tool_end;   // of formats of which there are several: around all calls; empty: none
	bool tool_variant = false;          // Mistral: with [ARGS]; DeepSeek: with the word "function" and a fence
	std::string think_begin, think_end; // around the model's reasoning: <think>, </think>; empty: none known
};
ChatFeatures chat_features(const ChatTemplate&);

// The messages in the form the template takes: parts of text as one string (with newlines between) or the other way
// round, arguments as objects or strings, null or "" for no content. Throws Error{Invalid} where a part is no text and
// the template takes strings only.
Json fit_messages(const ChatFeatures&, Json messages);

// The prompt ends inside the model's reasoning, so the answer begins there.
bool opens_reasoning(const ChatFeatures&, const Rendered& prompt);

} // namespace kvrun
