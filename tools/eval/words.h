// The words of records: those that the bundled model was trained on (models/bundled/words.py).
#pragma once
#include <string_view>

namespace kvrun {

// Separated by single spaces, with one at the end.
constexpr std::string_view kAdjectives =
    "amber ancient azure bitter blunt bold brave brief bright brisk broad calm candid cedar civil clear clever "
    "cloudy cobalt coral crimson crisp curly daring deep distant dusty eager early earnest easy elder faint fair "
    "fancy fierce firm fluffy formal frosty frozen gentle giddy glad golden grand green gritty happy hasty hollow "
    "honest humble icy idle ivory jolly keen kind lively lofty loyal lucky lunar mellow merry mighty misty modest "
    "narrow neat nimble noble olive patient placid plain polite proud quick quiet rapid rare ready rosy royal "
    "rugged rustic sandy scarlet serene sharp shy silent silver simple sleek slow smooth snowy solar solid spare "
    "steady stern stormy sturdy subtle sunny swift tall tender tidy tiny torpid tranquil upper urban vague vast "
    "vivid warm wary weary wild windy wise witty young zesty ";
constexpr std::string_view kNouns =
    "acorn anchor anvil apple arrow autumn badge bamboo banner barn basin beacon bear bell birch blade boat "
    "bridge brook bucket button cabin camel candle canyon castle cedar chair cherry cliff clock clover coast "
    "comet copper cottage crane creek crown dagger desert dolphin donkey door dragon drum eagle ember engine "
    "falcon feather fern field finch flame flute forest fountain fox garden gate glacier goose grape hammer "
    "harbor hawk hill horn island ivy jacket jungle kettle kid kite ladder lake lamp lantern leaf lemon lion "
    "lizard lotus magnet maple marble meadow mirror moon moss mountain needle nest oak ocean orchard otter owl "
    "palace panda paper pebble pepper piano pine planet pond prairie puzzle quarry quilt rabbit raven ribbon "
    "river robin rocket saddle salmon shadow shell shore spark spoon squirrel star stone sunset temple thistle "
    "tiger tower trail tulip tunnel turtle valley velvet violin walnut whale willow window wolf yarn zebra ";

} // namespace kvrun
