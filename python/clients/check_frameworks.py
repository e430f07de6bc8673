"""Proves that frameworks over the clients of OpenAI and Anthropic work with kvark serve, unmodified.

python check_frameworks.py ADDRESS, or `cargo xtask check-serve --frameworks`.
"""

import asyncio
import os
import sys
import traceback

import openai
from pydantic import BaseModel, Field

ADDRESS = sys.argv[1]
API = f"{ADDRESS}/v1"
os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=API, OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOCAL_MODEL_COST_MAP="True")
MODEL = openai.OpenAI(base_url=API, api_key="none").models.list().data[0].id
QUESTION = "What is the capital of France?"
CHECKS = []


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    population: int = Field(ge=0, le=99_999_999)


def check(function):
    """Adds a function to the list of checks."""
    CHECKS.append(function)
    return function


@check
def instructor_json_schema():
    import instructor

    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
        client = instructor.from_openai(openai.OpenAI(base_url=API, api_key="none"), mode=mode)
        city = client.chat.completions.create(
            model=MODEL, response_model=City, max_tokens=80, temperature=0, max_retries=0,
            messages=[{"role": "user", "content": "Describe Paris."}],
        )
        assert isinstance(city, City) and city.name, city


@check
def pydantic_ai():
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=API, api_key="none"))
    text = Agent(model, model_settings={"temperature": 0, "max_tokens": 16}).run_sync(QUESTION)
    assert "Paris" in text.output, text.output
    typed = Agent(model, output_type=NativeOutput(City), model_settings={"temperature": 0, "max_tokens": 80})
    assert isinstance(typed.run_sync("Describe Paris.").output, City)


@check
def langchain():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=API, api_key="none", temperature=0, max_tokens=80)
    assert "Paris" in model.invoke(QUESTION).content
    assert "Paris" in "".join(chunk.content for chunk in model.stream(QUESTION))
    typed = model.with_structured_output(City, method="json_schema").invoke("Describe Paris.")
    assert isinstance(typed, City), typed


@check
def litellm():
    import litellm as client

    arguments = {"temperature": 0, "max_tokens": 16, "messages": [{"role": "user", "content": QUESTION}]}
    for model, base in ((f"openai/{MODEL}", API), (f"anthropic/{MODEL}", ADDRESS)):
        answer = client.completion(model=model, api_base=base, api_key="none", **arguments)
        assert "Paris" in answer.choices[0].message.content, (model, answer)


@check
def openai_agents():
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner

    client = openai.AsyncOpenAI(base_url=API, api_key="none")

    async def run():
        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            agent = Agent(
                name="guide", model=kind(model=MODEL, openai_client=client),
                model_settings=ModelSettings(temperature=0, max_tokens=16),
            )
            first = await Runner.run(agent, QUESTION)
            assert "Paris" in first.final_output, (kind, first.final_output)
            more = [*first.to_input_list(), {"role": "user", "content": "And of Spain?"}]
            assert (await Runner.run(agent, more)).final_output
            if kind is OpenAIResponsesModel:
                again = await Runner.run(agent, "And of Spain?", previous_response_id=first.last_response_id)
                assert again.final_output

    asyncio.run(run())


@check
def llama_index():
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model=MODEL, api_base=API, api_key="none", is_chat_model=True, temperature=0, max_tokens=16)
    assert "Paris" in model.complete(QUESTION).text


@check
def smolagents():
    from smolagents import OpenAIModel

    model = OpenAIModel(model_id=MODEL, api_base=API, api_key="none", temperature=0, max_tokens=16)
    answer = model.generate([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}])
    assert "Paris" in answer.content, answer


def main():
    failed = []
    for function in CHECKS:
        try:
            function()
            print(f"ok      {function.__name__}", flush=True)
        except Exception:
            failed.append(function.__name__)
            print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
    if failed:
        sys.exit(f"{len(failed)} of {len(CHECKS)} failed: {', '.join(failed)}")
    print(f"{len(CHECKS)} checks passed")


main()
