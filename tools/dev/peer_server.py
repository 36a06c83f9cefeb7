"""llama-server in a folder with Debian (../shared/peer/setup.sh), as long as a `with` block; needs root for chroot."""
import json
import subprocess
import time
import urllib.request

PATIENCE = 60  # seconds until it answers


class PeerServer:
    """`ask(path, body)` posts JSON, or gets the path without a body, and returns the JSON of the answer."""

    def __init__(self, root, options, port, variables=()):
        self.port = port
        command = ["chroot", root, "env", *variables, "llama-server", "--port", str(port), "-np", "1", *options]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        began = time.monotonic()
        while True:
            time.sleep(0.2)
            try:
                self.ask("/health")
                return self
            except OSError:
                if self.server.poll() is not None or time.monotonic() - began > PATIENCE:
                    self.__exit__()
                    raise

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()

    def ask(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data,
                                         {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))

    def image_marker(self):
        """The text of a prompt that an image takes the place of."""
        return self.ask("/props").get("media_marker", "<__media__>")
