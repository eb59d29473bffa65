"""A page in headless Chromium, driven over chromedriver's HTTP interface (W3C WebDriver): no package is needed."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
]  # fmt: skip
KEYS = {"right": "\ue014", "left": "\ue012", "space": " ", "tab": "\ue004", "enter": "\ue007"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def unavailable() -> str | None:
    """Say why there is no browser, or None."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found: apt-get install chromium chromium-driver" if absent else None


class Browser:
    """One browser window; `logs` are what the console said and which requests were made."""

    def __init__(self, profile: str, width: int = 1100, height: int = 900) -> None:
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        self.base = f"http://127.0.0.1:{self._port()}"
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{answer['sessionId']}"

    def _port(self) -> int:
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                return int(line.rsplit(" ", 1)[1].rstrip(".\n"))
        raise RuntimeError("chromedriver did not start")

    def _call(self, method: str, path: str, body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def go(self, address: str) -> None:
        self._call("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: object) -> object:
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector: str) -> None:
        self._call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, *keys: str) -> None:
        text = "".join(KEYS.get(key, key) for key in keys)
        self._call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def hover(self, selector: str) -> None:
        move = {"type": "pointerMove", "duration": 0, "origin": {ELEMENT: self.find(selector)}, "x": 0, "y": 0}
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self._call("POST", "/actions", {"actions": [mouse]})

    def devtools(self, command: str, **parameters: object) -> object:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind: str) -> list[dict]:
        return self._call("POST", "/se/log", {"type": kind})

    def screenshot(self, path: str) -> None:
        Path(path).write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def close(self) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(10)
            time.sleep(0.1)
