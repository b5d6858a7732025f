"""What the demo model's golden asks: chat cases, and lines that are hard for a tokenizer.

CASES: name -> messages. HARD: texts kept as they are; lines() adds seeded mixtures of their
pieces. KNOWN_IDS: reference tokenizations. CALIBRATION: plain prose on which, beside the cases,
the router's load is balanced.
"""
import random

CASES = {
    "capital": [("user", "What is the capital of France?")],
    "sky": [("user", "Why is the sky blue?")],
    "rain": [("user", "Explain in a few sentences how rain forms.")],
    "story": [("user", "Write a short story about a fox who learns to share.")],
    "list": [("user", "Give me three tips for sleeping better.")],
    "code": [("user", "Write a Python function that adds two numbers.")],
    "system": [("system", "You are a patient teacher who answers in simple words."),
               ("user", "What is gravity?")],
    "turns": [("user", "Hello!"), ("assistant", "Hello! How can I help you today?"),
              ("user", "Tell me about the Moon.")],
    "thanks": [("user", "Thank you, goodbye!")],
    "bread": [("user", "How do I bake bread at home?")],
    "ocean": [("user", "Describe the ocean.")],
    "music": [("user", "Why do people enjoy music?")],
}

CALIBRATION = [
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the "
    "age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the "
    "season of Light, it was the season of Darkness, it was the spring of hope, it was the winter "
    "of despair, we had everything before us, we had nothing before us.",
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in "
    "my purse, and nothing particular to interest me on shore, I thought I would sail about a "
    "little and see the watery part of the world.",
    "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\nprint(gcd(84, 36))\n",
    "Water boils at 100 degrees Celsius at sea level. On a mountain 3000 metres high it boils at "
    "about 90 degrees, because the air presses less on its surface.",
]

HARD = [
    ' ', '  ', '\t', '\n', '\n\n', '\r\n', ' \n ', '\xa0', '\u3000', '\u2028', '\x85', '\x0b\x0c',
    'a', ' a', '  a', 'a ', 'a  ', '\ta\t', 'a\n', '\na', 'a\r\nb', 'a \n b', 'a\xa0b',
    'a\u3000b', 'Hello, world!', "don't", "DON'T", "I'm we've they'll he'd you're it's",
    "'s 't 're 've 'm 'll 'd", "'S 'T 'RE", "rock 'n' roll",
    'l\u2019homme d\u2019aujourd\u2019hui', "O'Neill's '90s''", "it 's", '0', '00', '007',
    '3.14159', '1,000,000', '1 2 3', ' 42', 'x86_64', 'v1.2.3-rc4', '2024-02-29T23:59:59Z',
    '0xDEADBEEF', '1e-9',
    '\xbd \xb2 \u2167 \u0663\u0664 \u0967\u0968 \U0001d7d9\U0001d7da \u3289', 'a1b22c333',
    '\u4e00\u4e8c\u4e09 123 \u56db', 'No.5', '50%', '$9.99', '\u20ac1.234,56',
    '+49 (30) 1234-5678', '<|im_start|>', '<|im_end|>', '<|endoftext|>',
    '<|im_start|>user\nhi<|im_end|>\n', '<|im_start|', '<|im_', '<<|im_end|>>', 'a<|im_end|>b',
    ' <|im_end|> ', '<|IM_END|>', '<|im_start|><|im_start|>', '<repo_name>x',
    '<reponame><file_sep>', '<jupyter_code>1+1<jupyter_output>2<empty_output>', '<issue_start',
    '< |im_end|>', 'na\xefve caf\xe9 \u0153uvre', 'nai\u0308ve cafe\u0301',
    '\xc5ngstr\xf6m A\u030angstro\u0308m', '\u0130stanbul \u0131\u015f\u0131k',
    'Stra\xdfe STRASSE \u1e9e', '\u0141\xf3d\u017a \u017c\xf3\u0142\u0107',
    'P\u0159\xedli\u0161 \u017elu\u0165ou\u010dk\xfd k\u016f\u0148',
    '\xc7a va\u202f? \xab\u202foui\u202f\xbb',
    '\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!',
    '\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u03c3\u03c2\u03a3',
    '\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645',
    '\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd',
    '\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e',
    '\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01',
    '\u4f60\u597d\uff0c\u4e16\u754c\uff01',
    '\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf\u30ab\u30ca\u30fc',
    '\u30a2\u30a4\u30a6 \uff71\uff72\uff73', '\uc548\ub155\ud558\uc138\uc694 \u1112\u1161\u11ab',
    '\U00020000\U0002a6d6', '\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0',
    '\u1e00\u0323\u0301\u0308', 'z\u0335\u0322\u0361a\u0337\u0321l\u0338\u0328g\u0336o',
    '\u202eabc\u202c', '\ufeffBOM', '\U0001f600', '\U0001f44d\U0001f3fd',
    '\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466',
    '\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7', '\u2764\ufe0f \u263a\ufe0e', '1\ufe0f\u20e3',
    '\U0001f3f4\U000e0067\U000e0062\U000e007f', '\xad\u200b\u200c\u200d\u2060',
    '\ue000\uf8ff\U0010fffd', '\x01\x1b[0m\x7f', '\ufffd', '\ufb01n\ufb02y',
    '\uff21\uff22\uff23\uff11\uff12', '\u2211_{i=0}^{n} x\u1d62\xb2 \u2264 \u221e',
    '\xb5 \u03bc \u212b \xc5', 'E=mc\xb2', '\xb1\xd7\xf7\u2248\u2260',
    'def f(x):\n    return x**2  # square\n', 'if (a && b || !c) { i++; }', 'for(;;){}',
    '#include <stdio.h>', "SELECT * FROM t WHERE a >= 10 AND b <> 'x';",
    '{"k": [1, 2.5, null, true]}', '<a href="x?y=1&z=2">&amp;</a>',
    'https://example.com/a/b?c=d#e', 'user.name+tag@example.co.uk', 'C:\\Users\\me\\file.txt',
    '/usr/lib/x86_64-linux-gnu', 'snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE',
    '__init__', 'a.b.c', '...', '\u2026', '?!?!', '--', '\u2014\u2013',
    '"quoted" \'single\' \u201ccurly\u201d `tick`', '(((())))', '[[]]{}',
    '!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!', '================',
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
    'AbCdEfGhIjKlMnOpQrStUvWxYz', 'antidisestablishmentarianism',
    'Donaudampfschifffahrtsgesellschaft', 'pneumonoultramicroscopicsilicovolcanoconiosis',
    '        indented by eight', 'tabs\t\t\tthree', 'trailing spaces   ', '   both   ',
    'line one\nline two\n\n\nline five', 'a  b   c    d     e', 'mixed \t \n \t end',
    '\n\n\n   \n\n', 'word\u2003em\u2009thin', 'x\xa0\xa0y', ' \xa0 z',
    'The quick brown fox jumps over the lazy dog.',
    "Who's on first? What's on second. I don't know's on third!",
    'What is the capital of France?', 'system\nYou are a helpful AI assistant named SmolLM',
]

# Ids that the published SmolLM2 tokenizer is known to give, so that a tokenizer rebuilt from the
# GGUF is checked against something else than itself.
KNOWN_IDS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "Hello, world!": [19556, 28, 905, 17],
    "I don't think it's 42.": [57, 1326, 982, 1510, 357, 506, 216, 36, 34, 30],
    "x = 3.14 + 2": [104, 446, 216, 35, 30, 33, 36, 1232, 216, 34],
    "The quick brown fox jumps over the lazy dog.":
        [504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767, 30],
    "  spaced  text": [216, 23861, 216, 1694],
    "123 abc": [33, 34, 35, 43239],
    "<|im_start|>user\nWhat": [1, 4093, 198, 1780],
}


def lines(count=300, seed=7):
    """`count` distinct texts: all of HARD, then seeded concatenations of two to five of them."""
    rng = random.Random(seed)
    out = list(dict.fromkeys(HARD))
    seen = set(out)
    while len(out) < count:
        text = rng.choice(["", " ", "\n"]).join(rng.choices(HARD, k=rng.randint(2, 5)))
        if text not in seen:
            seen.add(text)
            out.append(text)
    return out
