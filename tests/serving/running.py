"""`xla-dynamo serve` as a process, requests to it, and its model alone."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

from prometheus_client.parser import text_string_to_metric_families

SMALL = ("--longest", "128", "--requests", "3", "--batch-tokens", "32", "--cache-tokens", "256")
_OWN = ("finished_reason", "status")


class Running:
    """A server process; `with` waits until it is ready, and kills what is left of it."""

    def __init__(self, cache, folder, *arguments, sizes=SMALL):
        self.log = folder / "log"
        environment = {
            **os.environ,
            "XLA_DYNAMO_CACHE_DIR": str(cache),
            "CPU_NUM_DEVICES": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = ["-m", "xla_dynamo", "serve", "--port", "0", *sizes, *arguments]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=environment, stdout=log, stderr=log
            )
        self.port = None

    def __enter__(self):
        try:
            self.until(lambda: self.health()[0] == 200)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def until(self, condition, seconds=120):
        """Wait for a condition, while the process lives."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def stop(self, seconds=60):
        """End it as a supervisor does; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def connect(self, timeout=60):
        """A connection, once the server has said where."""
        if self.port is None:
            self.until(lambda: ":" in self.log.read_text())
            self.port = int(re.search(r"http://127.0.0.1:(\d+)", self.log.read_text())[1])
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def send(self, path, body=None, method=None):
        """Ask, and return the connection and the response."""
        connection = self.connect()
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {"content-type": "application/json"}
        connection.request(method or ("GET" if body is None else "POST"), path, raw, kind)
        return connection, connection.getresponse()

    def ask(self, path, body=None, method=None):
        """The status and the body of an answer."""
        connection, response = self.send(path, body, method)
        text = response.read().decode()
        connection.close()
        is_json = response.getheader("content-type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text

    def health(self):
        """What /health says."""
        return self.ask("/health")

    def completed(self, prompt, tokens, **more):
        """The text of a completion."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        status, found = self.ask("/v1/completions", body)
        assert status == 200, found
        return found["choices"][0]["text"]

    def metrics(self):
        """What /metrics tells, by name, as in `vllm:request_success_total{stop}`."""
        status, text = self.ask("/metrics")
        assert status == 200
        return {
            sample.name + "".join(f"{{{v}}}" for k, v in sample.labels.items() if k in _OWN): value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for value in [sample.value]
        }


def events(response):
    """The events of a stream, decoded; "[DONE]" stays a text."""
    for line in response:
        text = line.decode().strip()
        if text:
            assert text.startswith("data: "), text
            told = text.removeprefix("data: ")
            yield told if told == "[DONE]" else json.loads(told)


class Alone:
    """The server's tiny model, by transformers' own `generate`."""

    def __init__(self, folder):
        import transformers

        from xla_dynamo.serving.tiny_model import write_tiny_model

        write_tiny_model(folder)
        self.folder = folder
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def completed(self, prompt, tokens):
        """What it writes behind a text, taking the likeliest tokens."""
        return self._generated(self.tokenizer(prompt)["input_ids"], tokens)

    def chatted(self, messages, tokens):
        """What it answers to messages."""
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return self._generated(ids["input_ids"], tokens)

    def _generated(self, ids, tokens):
        import torch

        given = torch.tensor([ids])
        found = self.model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, do_sample=False
        )
        return self.tokenizer.decode(found[0, len(ids) :], skip_special_tokens=True)
