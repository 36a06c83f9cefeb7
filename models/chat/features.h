// Abilities of a chat template, found by rendering small conversations with it.
#pragma once
#include "models/chat/call_shape.h"

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
	Phi4,     // [{"name": ..., "arguments": {...}}] between markers: <|tool_call|> and <|/tool_call|>, <TOOLCALL> and
	          // </TOOLCALL> (Nemotron Nano 2)
	Kimi,     // <|tool_calls_section_begin|>
	          // <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
	          // <|tool_calls_section_end|> (Kimi K2)
	MiniMax, // <tool_call>\n<invoke name="name"><key>value</key><list><item>value</item></list></invoke>\n</tool_call>,
	         // a token ]<]minimax[>[ in front of each tag (MiniMax-M3)
	Shaped,  // as ChatFeatures::shape says: found by rendering (MiniMax-M2, DeepSeek V3.2, Seed-OSS, ..)
};
const char* tool_format_name(ToolFormat);
constexpr const char* kMiniMaxMark = "]<]minimax[>["; // of ToolFormat::MiniMax

struct ChatFeatures {
	bool system_role = false;      // a system message reaches the prompt
	bool several_system = false;   // so do two at the beginning
	bool tools = false;            // definitions of tools reach the prompt
	bool tool_calls = false;       // calls in earlier answers reach the prompt
	bool text_content = false;     // content may be a string
	bool part_content = false;     // content may be an array of parts
	bool object_arguments = false; // arguments of calls must be objects; else JSON in a string
	bool null_content = false;     // an answer that only calls tools must have content null; else ""
	bool calls_alone = false;      // calls beside a text are left out
	bool thinking_switch = false;  // the variable enable_thinking has an effect
	bool nine_letter_ids = false;  // refuses ids of calls that are not nine letters and digits (Mistral)
	ToolFormat tool_format = ToolFormat::None;
	std::string tool_begin, tool_end; // markers around all calls, if the format has several; empty: none
	bool tool_variant = false;        // Mistral: with [ARGS]; DeepSeek: with the word "function" and a fence
	CallShape shape;                  // of ToolFormat::Shaped
	bool written_calls = false;       // the template leaves out earlier calls: they become text of their answers
	// It leaves out definitions, or its form of calls is not known: they become text of the system message.
	bool written_tools = false;
	std::string think_begin, think_end;     // around the model's reasoning: <think>, </think>; empty: unknown
	std::string content_begin, content_end; // around the text of an answer; empty: none
	std::string reasoning_field;            // of an answer, whose text reaches the prompt as its reasoning; empty: none
	bool reasoning_beside_text = false;     // also if the answer has calls and a text
};
ChatFeatures chat_features(const ChatTemplate&);

// Whether the prompt ends inside the model's reasoning, so that the answer begins there.
bool opens_reasoning(const ChatFeatures&, const Rendered& prompt);
// Whether an answer may begin with reasoning: the prompt has neither opened nor closed it, and the variables that the
// template was given do not switch it off (enable_thinking false).
bool may_reason(const ChatFeatures&, const Rendered& prompt, const Json& variables = {});

} // namespace kvrun
