"""What an engine says of its flags, said of the fields that a user of the API knows."""

import re
from typing import Final

# The engine speaks of its command line; whoever reads a status wrote a spec.
_FIELDS: Final = {
    "--max-model-len": "spec.engine.maxModelLen",
    "--max-num-seqs": "spec.engine.maxNumSeqs",
    "--gpu-memory-utilization": "spec.engine.gpuMemoryUtilization",
    "--dtype": "spec.engine.dtype",
    "--served-model-name": "spec.model.name",
    "the memory limit": "spec.resources.limits.memory",
    ", or to auto": ", or leave it out",
}
# A spec cannot set this one.
_NO_FIELD: Final = re.compile(r" and --max-num-batched-tokens \(now \d+\)")


def in_words_of_the_spec(text: str) -> str:
    text = _NO_FIELD.sub("", text)
    for said, meant in _FIELDS.items():
        text = text.replace(said, meant)
    return text
