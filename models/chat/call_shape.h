// The form of a family's calls of tools, found by rendering calls with its template.
#pragma once
#include "models/chat/template.h"
#include <array>

namespace kvrun {

// Texts around the parts of calls, exactly as the template writes them:
//   all_begin (begin [id id_end] name name_end arguments end) between (...) .. all_end
// arguments: one JSON object, or, where key_begin is not empty, pairs: key_begin key key_end value value_end.
struct CallShape {
	// Of a value, as templates that write the type of each value tell them apart.
	enum Kind : uint8_t { String, Number, Boolean, Array, Object, Null, kKinds };

	std::string all_begin, all_end;   // around all calls; empty: none
	std::string begin;                // of a call
	std::string id_end;               // behind the id, in front of the name; empty: no id there
	std::string name_end, name_close; // behind the name; name_close: between the two is the number of the call
	std::string key_begin, key_end, value_end;
	std::array<std::string, kKinds> kinds; // behind key_end: the value's type, up to key_close
	std::string key_close;                 // empty: types are not written
	std::string end, between;
	bool character_data = false; // values may lie in <![CDATA[ and ]]>

	explicit operator bool() const { return !begin.empty(); }
	bool by_pairs() const { return !key_begin.empty(); }
	bool tells_strings() const; // strings have a type of their own
	std::string marker() const; // with which calls begin
};

// What a template needs to render calls, and what surrounds answers.
struct ShapeProbe {
	const ChatTemplate& chat;
	bool object_arguments = false, null_content = false, part_content = false; // as in ChatFeatures
	std::vector<std::string> before; // markers of reasoning and text that may precede calls
};
// Renders calls, and finds the texts between their parts. Empty if the template writes no calls, or if the texts found
// do not give exactly what it has written.
CallShape find_call_shape(const ShapeProbe&);

} // namespace kvrun
