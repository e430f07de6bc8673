"""Prompts from templates and word lists; the last tenth of each kind is held out. Drops prompts that are like excluded ones."""

import itertools
import random
import re
from pathlib import Path

TOPICS = """the water cycle|photosynthesis|black holes|volcanoes|the Roman Empire|the French Revolution|electric cars|solar panels
|wind energy|recycling|healthy breakfasts|learning the guitar|gardening in small spaces|baking bread|cats|dogs|horses|bees|whales
|the Moon|Mars|the human heart|vitamins|sleep|meditation|running a marathon|swimming|chess|football|the Olympic Games|jazz|opera
|oil painting|photography|travelling by train|camping|budgeting|saving money|job interviews|public speaking|writing a novel
|time management|teamwork|leadership|small businesses|marketing|the stock market|inflation|supply and demand|democracy|the United Nations
|climate change|rainforests|deserts|coral reefs|dinosaurs|fossils|atoms|magnets|gravity|light|sound|the internet|computer viruses
|passwords|machine learning|neural networks|databases|operating systems|version control|unit tests|recursion|sorting algorithms
|hash tables|the Python language|the history of computers|mobile phones|robots|3D printing|space travel|airplanes|bridges|trains
|coffee|tea|chocolate|cheese|pasta|soup|spices|tomatoes|apples|rice|winter sports|mountains|rivers|lighthouses|museums|libraries
|houseplants|beekeeping|knitting|pottery|woodworking|home repairs|cycling to work|yoga|board games|video games|film making|podcasts
|public transport|tides|earthquakes|thunderstorms|rainbows|the seasons|the solar system|comets|the ozone layer|plastic waste|clean water
|antibiotics|allergies|the immune system|headaches|first aid|dental care|vegetarian food|fermentation|ice cream|olive oil|salt|honey
|mortgages|taxes|insurance|pensions|online shopping|customer service|negotiation|remote work|internships|mentoring|homework|exams
|friendship|shyness|stress|habits|gratitude|humour|small talk|weddings|moving house|raising children|caring for old people|pets
|the Middle Ages|the Silk Road|ancient Egypt|the Vikings|the Industrial Revolution|the printing press|the steam engine|the telephone
|encryption|spreadsheets|web browsers|search engines|cloud computing|open source software|debugging|regular expressions|compilers
|batteries|nuclear power|bicycles|elevators|clocks|lenses|microscopes|satellites|submarines|glass|paper|concrete|steel|cotton
|poetry|mythology|folk tales|proverbs|languages|sign language|the alphabet|numbers|probability|geometry|fractions|statistics""".replace("\n", "").split("|")

PEOPLE = "Anna|Ben|Carla|David|Elena|Farid|Grace|Hugo|Ines|Jonas|Kira|Liam|Mona|Noah|Olga|Pavel|Rita|Sam|Tara|Yuki".split("|")
PLACES = "Paris|Tokyo|Cairo|Lima|Oslo|Rome|Berlin|Madrid|Boston|Sydney|Nairobi|Delhi|Toronto|Athens|Dublin|Vienna".split("|")
THINGS = "apples|books|pencils|tickets|bottles|chairs|stamps|shells|coins|cards|flowers|cookies|marbles|stickers".split("|")
JOBS = "teacher|nurse|baker|pilot|farmer|engineer|painter|lawyer|chef|gardener|librarian|plumber|journalist|musician".split("|")
ADJECTIVES = "short|funny|sad|simple|detailed|friendly|formal|surprising|cheerful|mysterious".split("|")
LANGUAGES = "Python|JavaScript|C|Rust|Java".split("|")

CODE_TASKS = """adds two numbers|reverses a string|counts the words in a text|finds the largest number in a list|checks whether a number is prime
|computes the factorial of a number|computes the Fibonacci numbers|removes duplicates from a list|sorts a list of names
|reads a file line by line|converts Celsius to Fahrenheit|checks whether a word is a palindrome|merges two sorted lists
|counts the vowels in a string|finds the average of a list|builds a multiplication table|generates a random password
|parses a date|validates an email address|groups words by their first letter|computes the greatest common divisor
|flattens a nested list|transposes a matrix|counts how often each letter occurs|rotates a list by k places
|implements a stack|implements a queue|performs a binary search|writes a dictionary to a JSON file|splits a text into sentences""".replace("\n", "").split("|")

SENTENCES = """{p} moved from {a} to {b} last year|{p} works as a {j} and likes the early morning|The train from {a} to {b} takes four hours
|{p} bought {n} {t} at the market in {a}|The museum in {a} is closed on Mondays|It rained all week in {b}|{p} learned to cook from an old {j}
|The meeting was moved to Thursday because {p} was ill|Most visitors of {a} come in summer|The new bridge will open next spring
|{p} found {n} {t} in the attic|A {j} from {b} won the first prize|The river is low, so the boats stay in the harbour
|{p} plans to write a book about {a}|The shop sells {t} and old maps|Nobody knew why the lights went out|The bus stops near the library
|{p} and {q} share a small office|The project is two weeks late|The team met in {b} to discuss the results""".replace("\n", "").split("|")


def _sentence(rng):
    a, b = rng.sample(PLACES, 2)
    p, q = rng.sample(PEOPLE, 2)
    words = dict(p=p, q=q, a=a, b=b, j=rng.choice(JOBS), t=rng.choice(THINGS), n=rng.randint(2, 40))
    return rng.choice(SENTENCES).format(**words) + "."


def _passage(rng, low=3, high=7):
    return " ".join(_sentence(rng) for _ in range(rng.randint(low, high)))


def _chat(rng):
    topic = rng.choice(TOPICS)
    return rng.choice(
        [
            f"What is interesting about {topic}?",
            f"Explain {topic} to a child.",
            f"Tell me about {topic}.",
            f"Why is {topic} important?",
            f"Give me some tips on {topic}.",
            f"What are common mistakes with {topic}?",
            f"How would you describe {topic} to a {rng.choice(JOBS)}?",
            f"Write a {rng.choice(ADJECTIVES)} story about a {rng.choice(JOBS)} in {rng.choice(PLACES)}.",
            f"Write a {rng.choice(ADJECTIVES)} poem about {topic}.",
            f"Write a {rng.choice(ADJECTIVES)} email from {rng.choice(PEOPLE)} to {rng.choice(PEOPLE)} about {topic}.",
            f"What should I know before I visit {rng.choice(PLACES)}?",
            f"Compare {topic} and {rng.choice(TOPICS)}.",
            f"I know nothing about {topic}. Where do I start?",
            f"My friend {rng.choice(PEOPLE)} talks about {topic} all day. What can I ask?",
            f"Is {topic} worth the effort for a {rng.choice(JOBS)}?",
            f"What do people often get wrong about {topic}?",
            f"How has {topic} changed in the last hundred years?",
            f"Write a dialogue between a {rng.choice(JOBS)} and a {rng.choice(JOBS)} about {topic}.",
            f"Write a {rng.choice(ADJECTIVES)} letter from a {rng.choice(JOBS)} in {rng.choice(PLACES)} to {rng.choice(PEOPLE)}.",
        ]
    )


def _code(rng):
    task, language = rng.choice(CODE_TASKS), rng.choice(LANGUAGES)
    return rng.choice(
        [
            f"Write a {language} function that {task}.",
            f"Write a {language} program that {task} and explain it.",
            f"Show me how to write code in {language} that {task}, with comments.",
            f"Write a {language} function that {task}, and a test for it.",
        ]
    )


def _summarise(rng):
    text = _passage(rng, 4, 9)
    return rng.choice(["Summarise this text: ", "Summarize in one sentence: ", "What are the main points? "]) + text


def _rewrite(rng):
    text = _passage(rng, 2, 4)
    how = rng.choice(["more formally", "in the past tense", "in simpler words", "as a letter", "with more detail", "politely"])
    return rng.choice([f"Rewrite this text {how}: {text}", f"Correct the mistakes in this text and rewrite it {how}: {text}", f"Repeat this text, {how}: {text}"])


def _list(rng):
    topic, n = rng.choice(TOPICS), rng.randint(3, 10)
    return rng.choice(
        [
            f"List {n} facts about {topic}.",
            f"Give me {n} ideas for a talk about {topic}.",
            f"List {n} questions that a {rng.choice(JOBS)} could ask about {topic}.",
            f"Make a numbered list of {n} steps to learn about {topic}.",
            f"Make a table of {n} words related to {topic} with their meanings.",
        ]
    )


def _reason(rng):
    p, q = rng.sample(PEOPLE, 2)
    t, x, y, z = rng.choice(THINGS), rng.randint(3, 40), rng.randint(2, 20), rng.randint(2, 9)
    return rng.choice(
        [
            f"{p} has {x} {t} and gives {min(y, x - 1)} to {q}. How many {t} does {p} have left? Think step by step.",
            f"{p} buys {z} boxes with {y} {t} each. How many {t} are there in total? Explain.",
            f"A train leaves {rng.choice(PLACES)} at {z}:00 and arrives {y} hours later. When does it arrive? Explain step by step.",
            f"If {p} is older than {q}, and {q} is older than Max, who is the youngest? Explain.",
            f"What is {x} times {y}? Show the calculation.",
            f"{x} {t} cost {x * z} dollars. How much do {y} {t} cost? Explain step by step.",
        ]
    )


WORDS_THAT_SAY_LITTLE = set(
    "a an and are as at be but by can could do does for from give have how i if in is it its me my not of on or should so some that the"
    " their them there they this to was we what when which who why will with would you your please tell explain write".split()
)


def content_words(text):
    return frozenset(re.findall(r"[a-z]+", text.lower())) - WORDS_THAT_SAY_LITTLE


class Excluded:
    """Prompts that must not be trained on: the lines of files, and the quoted strings in them."""

    def __init__(self, paths):
        self.by_word = {}
        for path in paths:
            for line in Path(path).read_text().splitlines():
                for text in [line, *re.findall(r'"([^"]{12,})"', line)]:
                    words = content_words(text)
                    if len(words) >= 2:
                        for word in words:
                            self.by_word.setdefault(word, []).append(words)

    def like(self, prompt):
        """Whether half of the words of the prompt and of an excluded one together are in both."""
        words = content_words(prompt)
        # Half of the words must be shared, so the rarer half and one more find every candidate.
        rare = sorted(words, key=lambda word: len(self.by_word.get(word, [])))[: len(words) // 2 + 1]
        near = {other for word in rare for other in self.by_word.get(word, [])}
        return any(2 * len(words & other) >= len(words | other) for other in near)


KINDS = dict(chat=_chat, code=_code, summarise=_summarise, rewrite=_rewrite, list=_list, reason=_reason)
SHARES = dict(chat=0.34, code=0.18, summarise=0.1, rewrite=0.12, list=0.16, reason=0.1)


def build(count, seed):
    """Pairs of a kind and a prompt: (to train on, held out). No held-out prompt is trained on."""
    train, held = [], []
    for kind, make in KINDS.items():
        rng = random.Random(f"{seed}-{kind}")
        seen = []
        known = set()
        for _ in itertools.repeat(None, 40 * count):
            prompt = make(rng)
            if prompt not in known:
                known.add(prompt)
                seen.append((kind, prompt))
            if len(seen) >= count * SHARES[kind]:
                break
        cut = len(seen) * 9 // 10
        train += seen[:cut]
        held += seen[cut:]
    rng = random.Random(seed)
    rng.shuffle(train)
    rng.shuffle(held)
    return train, held
