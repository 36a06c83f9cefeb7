// Fields of work items by name: a constant of the item's struct, whose fields are their own word offsets.
//
//   const AttendWork FIELD = AttendWork(WORDS_8);    then work[item + FIELD.pages] is the item's word `pages`
#include "shared/work.h"
#define WORDS_4 0u, 1u, 2u, 3u
#define WORDS_5 WORDS_4, 4u
#define WORDS_6 WORDS_5, 5u
#define WORDS_8 WORDS_6, 6u, 7u
#define WORDS_10 WORDS_8, 8u, 9u
