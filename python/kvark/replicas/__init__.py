"""kvark on many machines: replicas behind one OpenAI address, by Ray Serve (`pip install kvark[ray]`).

    python -m kvark.replicas model.gguf --replicas 4 --port 8000

Requests go to the replica whose prefix store holds most of the prompt, with load as the counterweight.
"""
