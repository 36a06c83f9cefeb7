#include "tools/eval/question_file.h"
#include "engine/core/utf8.h"
#include "tools/eval/text_file.h"
#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& value, const std::string& where, const char* field) {
	if (!value.is_string()) fail(Code::Format, "{}: '{}' is {}, expected text", where, field, value.type_name());
	return value.get<std::string>();
}

const Json& field_of(const Json& line, const std::string& where, const char* field) {
	const auto found = line.find(field);
	if (found == line.end())
		fail(Code::Format, "{}: no '{}'; a line is {{\"context\": text, \"question\": text, \"answers\": [text, ..]}}",
		     where, field);
	return *found;
}

Question question_of(std::string_view line, const std::string& where) {
	const Json j = Json::parse(line, nullptr, /*allow_exceptions=*/false);
	if (!j.is_object()) fail(Code::Format, "{}: not a JSON object on one line", where);
	Question q;
	q.record = text_of(field_of(j, where, "context"), where, "context") + "\n\n";
	q.query = "Question: " + text_of(field_of(j, where, "question"), where, "question") + "\nAnswer:";
	const Json& answers = field_of(j, where, "answers");
	if (!answers.is_array() || answers.empty())
		fail(Code::Format, "{}: 'answers' is {}, expected a list of at least one text", where,
		     answers.is_array() ? "empty" : answers.type_name());
	for (const Json& answer : answers) {
		const std::string text = text_of(answer, where, "answers");
		if (text.find_first_not_of(" \t\r\n") == text.npos)
			fail(Code::Format, "{}: 'answers' holds an empty text", where);
		(q.answer.empty() ? q.answer : q.other_answers.emplace_back()) = " " + text;
	}
	return q;
}

} // namespace

std::vector<Question> questions_of_file(const std::string& path, size_t most) {
	const std::string text = read_text_file(path, "name recall, needle or a file of questions", "questions");
	std::vector<Question> out;
	const std::string name = one_line(path);
	size_t number = 1;
	for (size_t at = 0; at < text.size() && out.size() < most; ++number) {
		const size_t end = std::min(text.find('\n', at), text.size());
		const std::string_view line = std::string_view(text).substr(at, end - at);
		if (line.find_first_not_of(" \t\r") != line.npos)
			out.push_back(question_of(line, fmt::format("{}:{}", name, number)));
		at = end + 1;
	}
	if (out.empty()) fail(Code::Format, "{}: no questions; a line of the file is one", name);
	return out;
}

} // namespace kvrun
