"""The published chat templates of three families, and conversations to render with them."""

from pathlib import Path

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = {file.stem: file.read_text() for file in sorted(FOLDER.glob("*.jinja"))}
SMOLLM2 = TEMPLATES["smollm2"]  # SmolLM2-360M-Instruct
QWEN2_5 = TEMPLATES["qwen2.5"]


def turn(role, content, **further):
    return {"role": role, "content": content} | further


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "text": "<é> & 'x'"}}}
ODD = "  {{ 7 * 7 }} {% raw %} <|im_end|>\n\n \u4f60\u597d <b>&amp;</b> \U0001f642\n"
CONVERSATIONS = {
    "question": [turn("user", "What is 2 + 2?")],
    "system": [turn("system", "Answer in one word."), turn("user", "Capital of France?")],
    "turns": [turn(("user", "assistant")[i % 2], "abcde"[i]) for i in range(5)],
    "odd text": [turn("user", ODD)],
    "thought": [
        turn("user", "Think."),
        turn("assistant", "<think>\nhm\n</think>\n\n\\boxed{4}"),
        turn("system", ""),
    ],
    "tools": [
        turn("user", "Add."),
        turn("assistant", "", tool_calls=[CALL, CALL]),
        turn("tool", "4"),
        turn("tool", "5"),
        turn("assistant", "It is 9."),
    ],
}
