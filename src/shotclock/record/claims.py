"""Sentences that claim how this program compares with another one: none may stand while that is PENDING.

Text in, sentences out. Finds claims by their words; it cannot tell whether a claim is true.
"""

from __future__ import annotations

import re

OTHERS = (
    r"(?:the )?(?:official|reference|original|upstream|oracle|other)\b"
    r"(?: (?:code|implementation|packages?|pipeline)s?)?"
    r"|(?:the )?(?:diffusers|ltx-core|ltx_core|ltx-pipelines|comfyui|vllm\S*|sglang|fastvideo)\b"
)
CLAIMS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?:on par|at par|parity|neck and neck) with (?:{OTHERS})",
        r"\b(?:reach|reache[sd]|achieve[sd]?|full|complete|proven) parity\b",
        rf"\b(?:faster|quicker|cheaper|better|slower|leaner) than (?:{OTHERS})",
        rf"\bas (?:fast|quick|good|exact) as (?:{OTHERS})",
        rf"\b(?:match(?:es|ed)?|equals?|beats?) (?:{OTHERS})[^.]{{0,40}}\b(?:speed|quality|clips?|pixels?)\b",
        rf"\b(?:identical|equivalent|equal) to (?:{OTHERS})[^.]{{0,40}}\b(?:speed|quality|clips?|pixels?)\b",
        r"\boutperform\w*|\bstate[- ]of[- ]the[- ]art\b",
        r"\b\d+(?:\.\d+)?\s?(?:x|times|%) (?:faster|quicker|better) than\b",
    )
)
NEGATED = re.compile(r"\b(?:no|not|never|nothing|none|without|cannot|may not)\b[^.]{0,60}$", re.IGNORECASE)


def parity_claims(text: str) -> list[str]:
    """Sentences that claim it; one whose words before the claim negate it is none."""
    found = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n(?=[-|#*])", text):
        flat = " ".join(sentence.split())
        if any((hit := claim.search(flat)) and not NEGATED.search(flat[: hit.start()]) for claim in CLAIMS):
            found.append(flat)
    return found
