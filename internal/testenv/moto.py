# moto's server on a free port of the loopback interface. It prints the port, and ends
# when its standard input does, which is when the process that started it is gone.
import logging
import sys

sys.path.insert(0, sys.argv[1])
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request

from moto.server import ThreadedMotoServer  # noqa: E402

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
