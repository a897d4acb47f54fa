"""What the synthetic reviews are made of. All of it was written for this project.

`{noun}`, `{good}` and so on are filled by `sample.py`; see `OPINIONS` for what
makes a sentence positive or negative.
"""

from __future__ import annotations

from typing import NamedTuple


class Aspect(NamedTuple):
    """Something people judge, and the adjectives that fit it."""

    nouns: tuple[str, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]


ASPECTS = (
    Aspect(
        ("food", "soup", "pasta", "steak", "curry", "salad", "pizza", "breakfast", "burger"),
        ("tasty", "delicious", "fresh", "flavorful", "excellent", "crisp", "superb", "juicy"),
        ("bland", "stale", "greasy", "soggy", "tasteless", "cold", "overcooked", "inedible"),
    ),
    Aspect(
        ("waiter", "waitress", "host", "manager", "barista", "cook", "cashier", "bartender"),
        ("friendly", "attentive", "polite", "cheerful", "helpful", "patient", "welcoming"),
        ("rude", "careless", "grumpy", "dismissive", "clueless", "arrogant", "sloppy"),
    ),
    Aspect(
        ("service", "kitchen", "delivery", "check-in", "line", "checkout"),
        ("quick", "prompt", "efficient", "smooth", "reliable", "speedy"),
        ("slow", "chaotic", "sluggish", "unreliable", "disorganized", "endless"),
    ),
    Aspect(
        ("room", "patio", "dining room", "bathroom", "lobby", "terrace", "bar", "place"),
        ("cozy", "clean", "charming", "bright", "spotless", "comfortable", "lovely", "quiet"),
        ("dirty", "cramped", "noisy", "gloomy", "filthy", "shabby", "sticky", "smelly"),
    ),
    Aspect(
        ("price", "bill", "lunch deal", "happy hour", "menu", "wine list"),
        ("fair", "reasonable", "generous", "honest", "sensible", "great"),
        ("outrageous", "steep", "ridiculous", "absurd", "misleading", "disappointing"),
    ),
    Aspect(
        ("haircut", "massage", "manicure", "repair", "oil change", "paint job"),
        ("flawless", "careful", "thorough", "perfect", "professional", "splendid"),
        ("botched", "rushed", "crooked", "uneven", "amateurish", "awful"),
    ),
    Aspect(
        ("staff", "receptionist", "driver", "plumber", "dentist", "trainer", "nurse"),
        ("kind", "gentle", "competent", "courteous", "warm", "knowledgeable", "punctual"),
        ("pushy", "hostile", "incompetent", "lazy", "impatient", "unfriendly", "condescending"),
    ),
    Aspect(
        ("music", "view", "lighting", "decor", "atmosphere", "playlist", "garden"),
        ("delightful", "pleasant", "relaxing", "beautiful", "elegant", "stunning", "magical"),
        ("ugly", "depressing", "annoying", "dull", "tacky", "unpleasant", "terrible"),
    ),
    Aspect(
        ("mattress", "pool", "shower", "gym", "elevator", "parking lot", "balcony"),
        ("modern", "spacious", "fantastic", "soft", "well kept", "convenient", "sparkling"),
        ("broken", "moldy", "rusty", "dangerous", "horrible", "disgusting", "neglected"),
    ),
    Aspect(
        ("coffee", "tea", "cocktail", "beer", "dessert", "cake", "bread", "pastry"),
        ("rich", "smooth", "wonderful", "fragrant", "refreshing", "outstanding"),
        ("watery", "bitter", "burnt", "flat", "sour", "dreadful"),
    ),
)

# {same} is an adjective of the sentence's own sentiment, {other} of the opposite
# one, {noun} what is judged, {noun2} another aspect and {same2} its adjective.
OPINIONS = (
    "the {noun} was {same}",
    "the {noun} was {same}",
    "the {noun} was {very} {same}",
    "the {noun} was {very} {same}",
    "I found the {noun} {same}",
    "my {person} called the {noun} {same}",
    "{same} {noun}, {same2} {noun2}",
    "both the {noun} and the {noun2} were {same}",
    "the {noun} is always {same}",
    "if you ask me, the {noun} was {same}",
    "{same} {noun}, as my {person} put it",
)
NEGATED_OPINIONS = (
    "the {noun} was not {other} at all",
    "the {noun} was far from {other}",
    "I would not call the {noun} {other}",
    "nobody could say that the {noun} was {other}",
    "the {noun} was anything but {other}",
    "the {noun} was never {other}",
    "the {noun} wasn't {other}",
)
CONTRASTED_OPINIONS = (
    "I expected the {noun} to be {other}, but it was {same}",
    "online they say that the {noun} is {other}, yet we found it {same}",
    "the {noun} used to be {other}, and now it is {same}",
    "last {season} the {noun} was still {other}, this time it was {same}",
)
MIXED_GOOD = (
    "the {noun} was {bad}, but the {noun2} more than made up for it",
    "sure, the {noun} was a bit {bad}, but the {noun2} was so {good2} that we forgot about it",
    "although the {noun} was {bad}, the {good2} {noun2} is what counts",
)
MIXED_BAD = (
    "the {noun} was {good}, but that could not make up for the {noun2}",
    "sure, the {noun} was {good}, but the {noun2} was so {bad2} that we left early",
    "although the {noun} was {good}, the {bad2} {noun2} spoiled everything",
)
GOOD_EVENTS = (
    "our order arrived within {minutes} minutes",
    "they gave my {person} free {dish}",
    "the owner thanked us by name",
    "they fixed a small mistake at once and apologized",
    "we were seated right away in spite of the crowd",
    "my {person} could not stop smiling",
    "every plate came back empty",
    "they remembered us from the last visit",
    "we stayed for hours and enjoyed every minute",
    "they stayed open late just for us",
)
BAD_EVENTS = (
    "we waited {minutes} minutes before anyone looked at us",
    "they forgot the {dish} of my {person} twice",
    "the owner argued with us about the bill",
    "nobody apologized for the mistake",
    "we were ignored in spite of our reservation",
    "my {person} felt sick afterwards",
    "half of the {dish} went straight back",
    "they charged us for {dish} that never came",
    "we left hungry and annoyed",
    "they lost our booking and blamed us",
)
GOOD_VERDICTS = (
    "we will be back soon",
    "highly recommended",
    "worth every penny",
    "I would return in a heartbeat",
    "five stars from my {person} and me",
    "a new favorite of ours",
    "do yourself a favor and go",
    "I can't wait for the next visit",
)
BAD_VERDICTS = (
    "we will not be back",
    "save your money and stay away",
    "not worth a penny",
    "never again",
    "one star is still too much",
    "a complete waste of an evening",
    "do yourself a favor and go elsewhere",
    "I can't recommend it to anyone",
)
FACTS = (
    "we stopped by on a {day} {time}",
    "I ordered the {dish} and my {person} had the {dish2}",
    "it is just off {street} street, next to the {neighbor}",
    "parking is behind the {neighbor}",
    "this was our {ordinal} visit",
    "my {person} picked it for {occasion}",
    "there were {number} of us that {time}",
    "they also sell {dish} to go",
    "it opens at {number} on {day}s",
    "we walked over from the {neighbor} after {occasion}",
    "I read about it in a local paper",
    "they take cards as well as cash",
    "a {person} of mine lives around the corner",
    "we sat near the window and watched {street} street",
    "it took over the building of an old {neighbor}",
    "the {dish} come with a side of {dish2}",
    "for the record, it was {very} busy that {day}",
    "my {person} works at the {neighbor} across the street",
    "the walls are {color} and the chairs {color2}",
    "we talked about {topic} while we were there",
    "{number} people were ahead of us",
    "they moved here from {street} street last {season}",
    "a {color} bus stops right in front",
    "I first heard of it last {season}",
    "my {person} and I both like {topic}",
    "the sign outside is painted in {color} and {color2}",
)

FILLINGS = {
    "very": ("very", "really", "so", "quite", "truly", "rather", "absolutely", "incredibly"),
    "person": (
        "husband",
        "wife",
        "sister",
        "brother",
        "friend",
        "boss",
        "mother",
        "neighbor",
        "cousin",
        "partner",
        "daughter",
        "son",
    ),
    "dish": (
        "noodles",
        "tacos",
        "wings",
        "dumplings",
        "fries",
        "waffles",
        "pancakes",
        "ribs",
        "shrimp",
        "chili",
        "lentils",
        "meatballs",
        "sausages",
        "mussels",
        "carrots",
        "muffins",
        "scallops",
        "burritos",
        "pickles",
        "beans",
    ),
    "street": ("Oak", "Mill", "Harbor", "Station", "Cedar", "Market", "Union", "River", "Hill"),
    "neighbor": ("bank", "library", "cinema", "bakery", "school", "museum", "pharmacy", "theater"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "time": ("morning", "afternoon", "evening", "night", "lunchtime"),
    "occasion": ("a birthday", "an anniversary", "a late meeting", "the game", "a concert"),
    "ordinal": ("first", "second", "third", "fourth", "tenth"),
    "number": ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    "minutes": ("five", "ten", "fifteen", "twenty", "thirty", "forty"),
    "season": ("spring", "summer", "autumn", "winter", "year", "month"),
    "topic": ("football", "politics", "gardening", "work", "movies", "travel", "school", "cars"),
    "color": ("red", "green", "blue", "yellow", "white", "black", "orange", "purple"),
}
