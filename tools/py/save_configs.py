#!/usr/bin/env python3
"""The configs of tests/golden/configs as transformers 5 saves them.

usage: save_configs.py FOLDER        (pip install transformers==5.23.0; torch is not needed)

Reads each NAME.json of FOLDER that the library takes and writes NAME.saved5.json beside
it: what save_pretrained makes of it. Code of a repository (auto_map) plays no part.
"""

import json
import pathlib
import sys
import tempfile

from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import CONFIG_MAPPING


def lines(config):
    """One key a line."""
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in config.items()) + "\n}\n"


def main(folder):
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        config = json.loads(path.read_text())
        if path.name.endswith(".saved5.json") or config["model_type"] not in CONFIG_MAPPING:
            continue
        config.pop("auto_map", None)
        try:
            read = CONFIG_MAPPING[config["model_type"]].from_dict(config)
        except StrictDataclassFieldValidationError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as out:
            read.save_pretrained(out)
            saved = json.loads((pathlib.Path(out) / "config.json").read_text())
        path.with_suffix(".saved5.json").write_text(lines(saved))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
