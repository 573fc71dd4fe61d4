"""Two network namespaces with a slow link between them, for whatever runs on two machines. Needs root, iproute2 and /dev/net/tun.

    with Link(delay=0.02, rate=100e6) as link:
        link.run("a", ["mpirun", ...])

Each packet waits until those before it have passed at the rate, and then for the delay; a queue that is full drops it, as a router does.
Not all kernels have netem.
"""

import fcntl
import os
import selectors
import struct
import subprocess
import threading
import time
from collections import deque

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Bytes that wait for the rate in each direction: a tenth of a second at 100 Mbit/s.
QUEUE = 1 << 20
MTU = 1500
ADDRESSES = {"a": "10.99.0.1", "b": "10.99.0.2"}


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def tunnel(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


class Link:
    """Namespaces `slow-a` and `slow-b`; each way has a delay in seconds and a rate in bits a second."""

    def __init__(self, delay, rate):
        self.delay, self.rate, self.ended, self.carried = delay, rate, False, 0

    def __enter__(self):
        self.fds = {}
        for side, other in ("ab", "ba"):
            namespace, device = f"slow-{side}", f"slow{side}"
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL)
            ip("netns", "add", namespace)
            self.fds[side] = tunnel(device)
            ip("link", "set", device, "netns", namespace)
            here = ("-n", namespace)
            ip(*here, "addr", "add", ADDRESSES[side], "peer", ADDRESSES[other], "dev", device)
            ip(*here, "link", "set", device, "mtu", str(MTU), "up")
            ip(*here, "link", "set", "lo", "up")
            # Between two steps a connection rests longer than TCP remembers how fast it may send: networks for such jobs turn that off.
            self.run(side, ["sh", "-c", "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"], check=True)
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
        for side, fd in self.fds.items():
            os.close(fd)
            ip("netns", "del", f"slow-{side}")

    def carry(self):
        """Hands packets on, each when its time has come."""
        selector = selectors.DefaultSelector()
        way = {}
        for side, other in ("ab", "ba"):
            way[self.fds[side]] = {"to": self.fds[other], "waiting": deque(), "free": 0.0}
            selector.register(self.fds[side], selectors.EVENT_READ)
        while not self.ended:
            now = time.monotonic()
            due = [w["waiting"][0][0] for w in way.values() if w["waiting"]]
            for key, _ in selector.select(max(0.0, min(due, default=now + 0.05) - now)):
                w = way[key.fd]
                while True:
                    try:
                        packet = os.read(key.fd, MTU + 100)
                    except BlockingIOError:
                        break
                    now = time.monotonic()
                    start = max(now, w["free"])
                    if (start - now) * self.rate / 8 > QUEUE:
                        continue
                    w["free"] = start + 8 * len(packet) / self.rate
                    w["waiting"].append((w["free"] + self.delay, packet))
                    self.carried += len(packet)
            now = time.monotonic()
            for w in way.values():
                while w["waiting"] and w["waiting"][0][0] <= now:
                    try:
                        os.write(w["to"], w["waiting"].popleft()[1])
                    except OSError:
                        pass

    def run(self, side, command, **rest):
        """A command on one side."""
        return subprocess.run(["ip", "netns", "exec", f"slow-{side}", *map(str, command)], **rest)

    def start(self, side, command, **rest):
        return subprocess.Popen(["ip", "netns", "exec", f"slow-{side}", *map(str, command)], **rest)
