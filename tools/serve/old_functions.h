// Functions as OpenAI's chats had them before tools: functions, function_call, messages of the role "function".
#pragma once
#include "tools/serve/fields.h"

namespace kvrun::serve {

// The request with tools in their place; none if it has no functions. Throws ApiError 400.
std::optional<Json> with_tools(const Json& body);
// An error of such a request, with the names of its fields.
ApiError of_functions(const ApiError&);
// The message of an answer, or a change of it in a stream, with its first call alone, as function_call.
Json with_function_call(Json message);

} // namespace kvrun::serve
