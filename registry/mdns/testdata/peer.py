# SPDX-License-Identifier: Apache-2.0
"""An independent peer: it says what it sees of a type, in lines of JSON, and announces what it is told in lines of JSON."""

import json
import sys

from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

kind, address = sys.argv[1], "127.0.0.1"


def say(**what):
    print(json.dumps(what), flush=True)


class Listener(ServiceListener):
    def add_service(self, zc, kind, name):
        self.describe("added", zc, kind, name)

    def update_service(self, zc, kind, name):
        self.describe("updated", zc, kind, name)

    def remove_service(self, zc, kind, name):
        say(event="removed", name=name)

    def describe(self, event, zc, kind, name):
        info = zc.get_service_info(kind, name, timeout=3000)
        if info is None:
            say(event="unresolved", name=name)
            return
        text = {k.decode(): (v or b"").decode() for k, v in info.properties.items()}
        say(event=event, name=name, port=info.port, addresses=info.parsed_addresses(), text=text)


zc = Zeroconf(interfaces=[address], ip_version=IPVersion.V4Only)
browser = ServiceBrowser(zc, kind, Listener())
known = {}
say(event="ready")
for line in sys.stdin:
    order = json.loads(line)
    name = order["name"] + "." + kind
    if order["do"] == "withdraw":
        zc.unregister_service(known.pop(name))
        continue
    info = ServiceInfo(
        kind, name, port=order["port"], properties=order["text"], server="peer.local.",
        parsed_addresses=[address], host_ttl=order["ttl"], other_ttl=order["ttl"],
    )
    if name in known:
        zc.update_service(info)
    else:
        zc.register_service(info)
    known[name] = info
zc.close()
