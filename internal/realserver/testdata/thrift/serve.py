# SPDX-License-Identifier: Apache-2.0
"""Runs Apache's TestServer.py, which listens on all interfaces, so that it listens on loopback only."""

import os
import runpy

from thrift.transport import TSocket

listen = TSocket.TServerSocket.listen


def listen_on_loopback(self):
    self.host = '127.0.0.1'
    listen(self)


TSocket.TServerSocket.listen = listen_on_loopback
runpy.run_path(os.path.join(os.path.dirname(__file__), 'TestServer.py'), run_name='__main__')
