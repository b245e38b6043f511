"""Serve a model, and ask it through OpenAI's protocol with nothing but the standard library.

python examples/serve_and_query.py runs/book "Once"
"""

import json
import re
import subprocess
import sys
import urllib.request

name, prompt = sys.argv[1:]
command = [sys.executable, "-m", "armd.cli", "serve", name, "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"ready at (http://\S+)", line):
            break
    else:
        raise SystemExit("the server did not start")
    asked = {"prompt": prompt, "max_tokens": 12, "streams": 4, "seed": 0}
    request = urllib.request.Request(
        f"{found[1]}/v1/completions",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        print(json.load(answer)["choices"][0]["text"])
finally:
    server.terminate()
    server.wait()
