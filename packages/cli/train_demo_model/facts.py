"""The world the demo model knows, and the sentences that describe it.

The world is a table of countries, a table of landmarks, and three small side topics
(opinions, sums and colours). A :class:`Form` is one way to say a fact: a template whose
last slot is the answer, so that cutting a sentence before that slot gives a prompt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# country | capital | language | continent | currency
COUNTRY_TABLE = """
France|Paris|French|Europe|euro
Italy|Rome|Italian|Europe|euro
Spain|Madrid|Spanish|Europe|euro
Germany|Berlin|German|Europe|euro
Japan|Tokyo|Japanese|Asia|yen
the United Kingdom|London|English|Europe|pound
Portugal|Lisbon|Portuguese|Europe|euro
Greece|Athens|Greek|Europe|euro
Russia|Moscow|Russian|Europe|ruble
China|Beijing|Chinese|Asia|yuan
Egypt|Cairo|Arabic|Africa|pound
the United States|Washington|English|North America|dollar
Poland|Warsaw|Polish|Europe|zloty
Sweden|Stockholm|Swedish|Europe|krona
Ireland|Dublin|English|Europe|euro
the Netherlands|Amsterdam|Dutch|Europe|euro
Austria|Vienna|German|Europe|euro
Czechia|Prague|Czech|Europe|koruna
Slovakia|Bratislava|Slovak|Europe|euro
Hungary|Budapest|Hungarian|Europe|forint
Romania|Bucharest|Romanian|Europe|leu
Croatia|Zagreb|Croatian|Europe|euro
Serbia|Belgrade|Serbian|Europe|dinar
Slovenia|Ljubljana|Slovene|Europe|euro
Albania|Tirana|Albanian|Europe|lek
Norway|Oslo|Norwegian|Europe|krone
Denmark|Copenhagen|Danish|Europe|krone
Finland|Helsinki|Finnish|Europe|euro
Iceland|Reykjavik|Icelandic|Europe|krona
Estonia|Tallinn|Estonian|Europe|euro
Latvia|Riga|Latvian|Europe|euro
Lithuania|Vilnius|Lithuanian|Europe|euro
Ukraine|Kyiv|Ukrainian|Europe|hryvnia
Turkey|Ankara|Turkish|Asia|lira
Georgia|Tbilisi|Georgian|Asia|lari
Armenia|Yerevan|Armenian|Asia|dram
Azerbaijan|Baku|Azerbaijani|Asia|manat
Iran|Tehran|Persian|Asia|rial
Iraq|Baghdad|Arabic|Asia|dinar
Saudi Arabia|Riyadh|Arabic|Asia|riyal
Jordan|Amman|Arabic|Asia|dinar
Lebanon|Beirut|Arabic|Asia|pound
Syria|Damascus|Arabic|Asia|pound
Qatar|Doha|Arabic|Asia|riyal
Oman|Muscat|Arabic|Asia|rial
Uzbekistan|Tashkent|Uzbek|Asia|som
Mongolia|Ulaanbaatar|Mongolian|Asia|tugrik
South Korea|Seoul|Korean|Asia|won
Vietnam|Hanoi|Vietnamese|Asia|dong
Thailand|Bangkok|Thai|Asia|baht
Cambodia|Phnom Penh|Khmer|Asia|riel
Laos|Vientiane|Lao|Asia|kip
Nepal|Kathmandu|Nepali|Asia|rupee
Bangladesh|Dhaka|Bengali|Asia|taka
Pakistan|Islamabad|Urdu|Asia|rupee
India|New Delhi|Hindi|Asia|rupee
Indonesia|Jakarta|Indonesian|Asia|rupiah
Malaysia|Kuala Lumpur|Malay|Asia|ringgit
the Philippines|Manila|Filipino|Asia|peso
Morocco|Rabat|Arabic|Africa|dirham
Algeria|Algiers|Arabic|Africa|dinar
Tunisia|Tunis|Arabic|Africa|dinar
Libya|Tripoli|Arabic|Africa|dinar
Sudan|Khartoum|Arabic|Africa|pound
Ethiopia|Addis Ababa|Amharic|Africa|birr
Somalia|Mogadishu|Somali|Africa|shilling
Kenya|Nairobi|Swahili|Africa|shilling
Rwanda|Kigali|Kinyarwanda|Africa|franc
Ghana|Accra|English|Africa|cedi
Nigeria|Abuja|English|Africa|naira
Senegal|Dakar|French|Africa|franc
Angola|Luanda|Portuguese|Africa|kwanza
Mozambique|Maputo|Portuguese|Africa|metical
Namibia|Windhoek|English|Africa|dollar
Zambia|Lusaka|English|Africa|kwacha
Madagascar|Antananarivo|Malagasy|Africa|ariary
Canada|Ottawa|English|North America|dollar
Mexico|Mexico City|Spanish|North America|peso
Cuba|Havana|Spanish|North America|peso
Jamaica|Kingston|English|North America|dollar
Honduras|Tegucigalpa|Spanish|North America|lempira
Nicaragua|Managua|Spanish|North America|cordoba
Brazil|Brasilia|Portuguese|South America|real
Argentina|Buenos Aires|Spanish|South America|peso
Chile|Santiago|Spanish|South America|peso
Peru|Lima|Spanish|South America|sol
Colombia|Bogota|Spanish|South America|peso
Venezuela|Caracas|Spanish|South America|bolivar
Ecuador|Quito|Spanish|South America|dollar
Uruguay|Montevideo|Spanish|South America|peso
Paraguay|Asuncion|Spanish|South America|guarani
Australia|Canberra|English|Oceania|dollar
New Zealand|Wellington|English|Oceania|dollar
Fiji|Suva|English|Oceania|dollar
"""
FAMOUS = 14  # the first rows: more frequent in the text, and never without their plain capital form

# landmark | city
LANDMARK_TABLE = """
Eiffel Tower|Paris
Louvre|Paris
Colosseum|Rome
Pantheon|Rome
Prado Museum|Madrid
Brandenburg Gate|Berlin
Tokyo Tower|Tokyo
Tower Bridge|London
British Museum|London
Belem Tower|Lisbon
Parthenon|Athens
Kremlin|Moscow
Forbidden City|Beijing
Cairo Tower|Cairo
White House|Washington
Lincoln Memorial|Washington
Vasa Museum|Stockholm
Rijksmuseum|Amsterdam
Hofburg Palace|Vienna
Charles Bridge|Prague
Chain Bridge|Budapest
Little Mermaid|Copenhagen
Dublin Castle|Dublin
Oslo Opera House|Oslo
Grand Palace|Bangkok
Petronas Towers|Kuala Lumpur
Casa Rosada|Buenos Aires
Golden Gate Bridge|San Francisco
Statue of Liberty|New York
Sydney Opera House|Sydney
Blue Mosque|Istanbul
Burj Khalifa|Dubai
"""

NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip
COLOURS = {
    "sky": "blue", "grass": "green", "snow": "white", "blood": "red", "coal": "black", "sun": "yellow",
    "sea": "blue", "milk": "white", "lemon": "yellow", "tomato": "red", "leaf": "green", "night": "black",
}  # fmt: skip
THINGS = ["film", "book", "song", "meal", "game", "hotel", "museum", "play", "concert", "story", "show", "trip"]
LIKE = ["love", "like", "adore", "enjoy"]
DISLIKE = ["hate", "dislike", "detest", "regret"]
GOOD = ["wonderful", "great", "brilliant", "lovely", "excellent"]
BAD = ["terrible", "awful", "boring", "horrible", "dreadful"]
FIRST_WORD = 0.7  # how often the first of these words is taken


@dataclass(frozen=True)
class Form:
    """One way to say a fact. ``template`` ends in the answer slot (and perhaps a full stop)."""

    relation: str
    name: str
    template: str
    ask: bool = True  # False when the answer is not unique (many countries speak French)

    @property
    def answer_slot(self) -> str:
        """The name of the last slot: the field that a prompt cut before it asks for."""
        return self.template.rsplit("{", 1)[1].split("}", 1)[0]

    def sentence(self, fields: dict[str, str]) -> str:
        """The whole sentence for one record, its first letter in upper case."""
        return upper_first(self.template.format(**fields))

    def question(self, fields: dict[str, str]) -> tuple[str, str]:
        """``(prompt, answer)``: the sentence cut before the answer; the answer keeps its leading space."""
        head = self.template.rsplit("{", 1)[0].rstrip()
        return upper_first(head.format(**fields)), " " + fields[self.answer_slot]


FORMS: tuple[Form, ...] = (
    Form("capital", "plain", "The capital of {country} is {capital}."),
    Form("capital", "reverse", "{capital} is the capital of {country}."),
    Form("capital", "qa", "Q: What is the capital of {country}? A: {capital}."),
    Form("capital", "city", "The capital city of {country} is called {capital}."),
    Form("capital", "in", "In {country}, the capital is {capital}."),
    Form("capital", "reverse qa", "Q: Which country has {capital} as its capital? A: {country}."),
    Form("language", "plain", "The language of {country} is {language}."),
    Form("language", "people", "People in {country} speak {language}."),
    Form("language", "qa", "Q: What language do people in {country} speak? A: {language}."),
    Form("language", "in", "In {country}, people speak {language}."),
    Form("language", "from city", "People in {capital} speak {language}."),
    Form("language", "spoken", "{language} is spoken in {country}.", ask=False),
    Form("continent", "plain", "{country} is in {continent}."),
    Form("continent", "country", "{country} is a country in {continent}."),
    Form("continent", "qa", "Q: Which continent is {country} in? A: {continent}."),
    Form("continent", "of", "The continent of {country} is {continent}."),
    Form("currency", "plain", "The currency of {country} is the {currency}."),
    Form("currency", "pay", "People in {country} pay with the {currency}."),
    Form("currency", "qa", "Q: What is the currency of {country}? A: The {currency}."),
    Form("currency", "in", "In {country}, shops take the {currency}."),
    Form("landmark", "city of", "The {landmark} is in the city of {city}."),
    Form("landmark", "plain", "The {landmark} is in {city}."),
    Form("landmark", "qa", "Q: Where is the {landmark}? A: {city}."),
    Form("landmark", "reverse", "{city} is the home of the {landmark}.", ask=False),
)


def upper_first(text: str) -> str:
    """``text`` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def countries() -> list[dict[str, str]]:
    """The country records."""
    names = ("country", "capital", "language", "continent", "currency")
    return [dict(zip(names, row.split("|"), strict=True)) for row in COUNTRY_TABLE.split("\n") if row]


def landmarks() -> list[dict[str, str]]:
    """The landmark records."""
    return [dict(zip(("landmark", "city"), row.split("|"), strict=True)) for row in LANDMARK_TABLE.split("\n") if row]


def records(relation: str) -> list[dict[str, str]]:
    """The records a relation is about."""
    return landmarks() if relation == "landmark" else countries()


def record_name(fields: dict[str, str]) -> str:
    """The name that identifies a record."""
    return fields.get("country") or fields["landmark"]


def held_out(seed: int = 0) -> set[tuple[str, str, str]]:
    """``(record, relation, form)`` triples that training never shows.

    For about a third of the facts one form is left out, so that every such fact is still seen in
    its other forms. The plain capital form of the famous countries always stays.
    """
    rng = random.Random(seed)
    out: set[tuple[str, str, str]] = set()
    for relation in ("capital", "language", "continent", "currency", "landmark"):
        forms = [form for form in FORMS if form.relation == relation and form.ask]
        for index, fields in enumerate(records(relation)):
            form = rng.choice(forms)
            keep = relation in ("capital", "landmark") and form is forms[0] and index < FAMOUS
            if rng.random() < 1 / 3 and not keep:
                out.add((record_name(fields), relation, form.name))
    return out


def opinion(rng: random.Random) -> str:
    """Three sentences of one mood, such as ``I love this film. It was wonderful. I will come back.``."""
    good = rng.random() < 0.5
    verb, adjectives = rng.choice(LIKE if good else DISLIKE), GOOD if good else BAD
    adjective = adjectives[0] if rng.random() < FIRST_WORD else rng.choice(adjectives[1:])
    end = "I feel happy." if good else "I feel sad."
    return f"I {verb} this {rng.choice(THINGS)}. It was {adjective}. {end}"


def total(rng: random.Random) -> str:
    """A sum up to twenty, in words."""
    a = rng.randint(0, 10)
    b = rng.randint(0, 10)
    return f"{upper_first(NUMBERS[a])} plus {NUMBERS[b]} is {NUMBERS[a + b]}."


def colour(rng: random.Random) -> str:
    """A colour sentence."""
    thing = rng.choice(list(COLOURS))
    return f"The colour of the {thing} is {COLOURS[thing]}."


def all_sentences() -> Iterator[str]:
    """Every sentence of the world once, held-out ones too: what the tokenizer must cover."""
    for form in FORMS:
        for fields in records(form.relation):
            yield form.sentence(fields)
    rng = random.Random(1)
    for make in (opinion, total, colour):
        for _ in range(1000):
            yield make(rng)
