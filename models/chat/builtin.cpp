// Chat templates by name: those of the file, and built-in ones for families whose files lack a template.
#include "models/chat/builtin.h"
#include "engine/core/utf8.h"
#include <fmt/ranges.h>

namespace kvrun {
namespace {

struct Named {
	std::string_view name, text;
};

constexpr std::string_view kKey = "tokenizer.chat_template";

// Sorted by name. If a family has no system role, the system message precedes the user's first message.
constexpr Named kBuiltin[] = {
    {"chatml", R"jinja({%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})jinja"},

    {"deepseek", R"jinja({{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] }}
    {%- elif message['role'] == 'user' %}
        {{- '<｜User｜>' + message['content'] }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<｜Assistant｜>' + message['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}
    {%- else %}
        {{- raise_exception('role ' + message['role'] + ' is not known; use system, user or assistant') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' }}
{%- endif %})jinja"},

    {"deepseek2", R"jinja({{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] + '\n\n' }}
    {%- elif message['role'] == 'user' %}
        {{- 'User: ' + message['content'] + '\n\n' }}
    {%- elif message['role'] == 'assistant' %}
        {{- 'Assistant: ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('role ' + message['role'] + ' is not known; use system, user or assistant') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:' }}
{%- endif %})jinja"},

    {"gemma", R"jinja({{- bos_token }}
{%- set system = '' %}
{%- set turns = messages %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] + '\n\n' %}
    {%- set turns = messages[1:] %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user, assistant, ...') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\n' }}
    {{- (system if loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\n' }}
{%- endif %})jinja"},

    {"llama2", R"jinja({%- set system = '' %}
{%- set turns = messages %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
    {%- set turns = messages[1:] %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user, assistant, ...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + ((system if loop.first else '') + message['content']) | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %})jinja"},

    {"llama3", R"jinja({{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})jinja"},

    {"llama4", R"jinja({{- bos_token }}
{%- for message in messages %}
    {{- '<|header_start|>' + message['role'] + '<|header_end|>\n\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header_start|>assistant<|header_end|>\n\n' }}
{%- endif %})jinja"},

    {"mistral", R"jinja({{- bos_token }}
{%- set system = '' %}
{%- set turns = messages %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] + '\n\n' %}
    {%- set turns = messages[1:] %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user, assistant, ...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %})jinja"},

    {"phi3", R"jinja({%- for message in messages %}
    {{- '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- else %}
    {{- eos_token }}
{%- endif %})jinja"},

    {"rwkv-world", R"jinja({%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('role ' + message['role'] + ' is not known; use system, user or assistant') }}
    {%- endif %}
    {{- message['role'] | capitalize + ': ' + message['content'] | trim + '\n\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:' }}
{%- endif %})jinja"},

    {"vicuna", R"jinja({%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] + '\n\n' }}
    {%- elif message['role'] == 'user' %}
        {{- 'USER: ' + message['content'] + '\n' }}
    {%- else %}
        {{- 'ASSISTANT: ' + message['content'] + eos_token + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'ASSISTANT:' }}
{%- endif %})jinja"},

    {"zephyr", R"jinja({%- for message in messages %}
    {{- '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- endif %})jinja"},
};

std::string key_of(std::string_view name) {
	return name == "default" ? std::string(kKey) : fmt::format("{}.{}", kKey, name);
}

} // namespace

std::vector<std::string_view> builtin_chat_templates() {
	std::vector<std::string_view> names;
	for (const Named& t : kBuiltin) names.push_back(t.name);
	return names;
}

std::string_view builtin_chat_template(std::string_view name) {
	for (const Named& t : kBuiltin)
		if (t.name == name) return t.text;
	return {};
}

std::vector<std::string> model_chat_templates(const Gguf& g) {
	std::vector<std::string> names;
	if (g.find(kKey)) names.push_back("default");
	for (const GgufEntry& e : g.entries())
		if (e.type == GgufType::String && e.key.size() > kKey.size() + 1 && e.key.starts_with(kKey) &&
		    e.key[kKey.size()] == '.')
			names.emplace_back(e.key.substr(kKey.size() + 1));
	return names;
}

ChatTemplate choose_chat_template(const Gguf& g, std::string_view name, bool tools) {
	const std::string_view wanted = !name.empty()                                    ? name
	                                : tools && g.find(key_of("tool_use")) != nullptr ? "tool_use"
	                                                                                 : "default";
	const std::string key = key_of(wanted);
	const std::string_view own = g.text(key, "");
	if (const std::string_view named = builtin_chat_template(own); !named.empty()) // files of RWKV name it
		return ChatTemplate(std::string(named), fmt::format("chat template {}", own));
	if (g.find(key)) return ChatTemplate(std::string(g.text(key)), fmt::format("{}: {}", g.name(), one_line(key)));
	if (const std::string_view text = builtin_chat_template(wanted); !text.empty())
		return ChatTemplate(std::string(text), fmt::format("chat template {}", wanted));
	std::vector<std::string> names;
	for (const std::string& each : model_chat_templates(g)) names.push_back(one_line(each, 40));
	for (std::string_view each : builtin_chat_templates()) names.emplace_back(each);
	if (name.empty())
		fail(Code::NotFound, "{}: the file has no chat template; choose one with --chat-template: {}", g.name(),
		     fmt::join(names, ", "));
	fail(Code::NotFound, "there is no chat template '{}'; there are {}", one_line(name, 40), fmt::join(names, ", "));
}

} // namespace kvrun
