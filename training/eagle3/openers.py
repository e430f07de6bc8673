"""Beginnings of user messages. The target continues them at temperature 1, which gives varied and natural prompts."""

CHAT = """How do I|How can I|How does|How do|How would you|How long does it take to|How much|How many|How should I|How often should I
|What is|What are|What does|What would|What should I|What happens when|What happens if|What kind of|What was|What can I do if|What do you
|What is the best way to|What is the difference between|What is your|What are the main|What are some|What makes|What causes|What if
|Why do|Why does|Why is|Why are|Why did|Why should|Why do people|Why can't|When should I|When did|When is|Where can I|Where does|Where should
|Who was|Who invented|Which|Which is better,|Is it|Is it true that|Is there|Is it safe to|Are there|Are|Can you|Can I|Can you explain
|Can you help me|Can you tell me|Could you|Could you explain|Do I need|Do you|Do you think|Does|Did|Should I|Should we|Would you|Would it be
|Will|I am|I am a|I am trying to|I am looking for|I am planning|I am writing|I am thinking of|I am worried about|I am learning|I feel
|I have|I have a|I have been|I have to|I have never|I need|I need to|I need help with|I need advice|I want to|I would like to|I just
|I just moved|I just started|I recently|I keep|I lost|I love|I hate|I don't know|I don't understand|I can't|I was|I work|I live
|I'm having trouble|I'm curious about|I've been|I've always|My|My friend|My boss|My wife|My husband|My son|My daughter|My mother|My father
|My brother|My roommate|My teacher|My team|My dog|My cat|My car|My computer|My phone|My garden|My company|My class|My parents|My landlord's
|Our|We|We are|We have|We want to|Someone|People say|There is|If I|If you|Suppose|Imagine|Imagine you are|Let's|Let's talk about|Let us
|Hi|Hi,|Hello,|Hey,|Hi, I|Good morning|Good evening,|Thanks|Thank you for|Please|Please explain|Please help me|Please tell me|Please write
|Tell me|Tell me about|Tell me a|Tell me how|Tell me why|Explain|Explain how|Explain why|Explain the|Describe|Describe how|Describe a|Compare
|Compare the|Discuss|Help me|Help me understand|Help me write|Help me decide|Give me|Give me a|Give me some|Give me advice|Give an example of
|Suggest|Suggest a|Recommend|Advise me on|Talk to me about|Teach me|Show me|Say|Define|In your opinion,|In simple terms,|In a few sentences,
|In which|For a|As a|At what|After|Before|During|Since|Because|The|The first|The most|A|A friend|A few|An|One|Two|Some|Many|Most|Every
|Today|Yesterday|Tomorrow|Last week|Next month|This year|On Monday|It is|It seems|That|These|You are|You|Your|Not sure|Quick question:""".replace("\n", "").split("|")

WRITING = """Write a|Write an|Write a short|Write a short story about|Write a letter|Write a poem|Write a paragraph|Write a review|Write a speech
|Write a dialogue|Write a product description|Write an article|Write an essay|Write a message to|Write a thank-you note|Write a cover letter
|Write a job description|Write a summary|Write instructions for|Write two sentences about|Draft a|Draft an email|Draft a letter|Compose a
|Create a|Create a list of|Create a plan|Create a schedule|Create a story|Create a dialogue|Make a list of|Make a plan|Make up a|Plan a
|Invent a|Design a|Come up with|Brainstorm|Outline|List|List five|List ten|List the|Name three|Name some|Summarize|Summarise|Summarize the following
|Rewrite|Rewrite the following|Rewrite this sentence|Edit|Correct|Fix|Shorten|Paraphrase|Translate|Turn this into|Simplify|Classify|Extract
|Continue|Finish|Complete the|Generate a|Generate|Improve|Proofread|Convert|Here is a text:|Here is a passage:|Read this|Based on the text|Given the""".replace("\n", "").split("|")

TASKS = """Write a Python function|Write a Python program|Write a Python script|Write a function|Write a program|Write a JavaScript function
|Write a SQL query|Write a class|Write a C program|Write a Java method|Write a Rust function|Write a regular expression|Write a unit test
|Write code|Write HTML|Implement|Implement a|Debug|Refactor|Explain this code|What does this code do?|How do I write|How do I parse
|How do I sort|How do I read a file|How can I use|In Python,|In JavaScript,|In SQL,|In C++,|Using Python,|Given a list|Given an array
|Given a string|Create a Python|Create a function|Create a class|I'm getting an error|I have a Python|I have a table|I have a list
|I am using Python|My code|The following code|Solve|Solve the equation|Calculate|Find the|Find the value|If a train|If x|A farmer|A shop
|A rectangle|A train|A store|There are|Tom has|Maria buys|John has|Sarah|What is the sum|What is the probability|How many ways
|How much does|Prove that|Think step by step|Simplify the expression|Convert|Estimate|Determine""".replace("\n", "").split("|")


def draw(rng):
    """The beginning of a message: often nothing at all, so that the target chooses."""
    kind = rng.random()
    if kind < 0.3:
        return ""
    return rng.choice(CHAT if kind < 0.78 else WRITING if kind < 0.9 else TASKS)
