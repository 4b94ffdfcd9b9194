"""A mail server for one test: aiosmtpd, told by JSON how to answer.

It prints its port, then every mail that it keeps, one JSON object a line, a mail
before it is acknowledged. It ends when its standard input does.
"""

import asyncio
import base64
import json
import os
import ssl
import sys
import threading

told = json.loads(sys.argv[1])
sys.path.insert(0, told["packages"])

from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword  # noqa: E402


def tell(**what):
    print(json.dumps(what), flush=True)


async def step(name, usual):
    if told["dies"] == name:
        os._exit(1)
    await asyncio.sleep(told["slow"].get(name, 0) / 1e9)
    return told["answers"].get(name, usual)


class Server(SMTP):
    open = 0
    counted = greeted = False

    def connection_made(self, transport):
        if not self.counted:  # STARTTLS makes it once more
            self.counted = True
            Server.open += 1
        super().connection_made(transport)

    def connection_lost(self, error):
        if self.counted:
            self.counted = False
            Server.open -= 1
        super().connection_lost(error)

    async def push(self, status):
        if not self.greeted:
            self.greeted = True
            status = await step("CONNECT", status)
        await super().push(status)

    async def smtp_DATA(self, arg):
        answer = await step("DATA", None)
        if answer:
            await self.push(answer)
        else:
            await super().smtp_DATA(arg)


class Handler:
    async def handle_MAIL(self, server, session, envelope, address, options):
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return await step("MAIL", "250 OK")

    async def handle_RCPT(self, server, session, envelope, address, options):
        envelope.rcpt_tos.append(address)
        return await step("RCPT", "250 OK")

    async def handle_DATA(self, server, session, envelope):
        if told["answers"].get("DOT", "2").startswith("2"):
            tell(
                hello=session.host_name,
                user=session.auth_data or "",
                encrypted=server.transport.get_extra_info("ssl_object") is not None,
                open=Server.open,
                sender=envelope.mail_from,
                options=envelope.mail_options,
                recipients=envelope.rcpt_tos,
                content=base64.b64encode(envelope.content).decode(),
            )
        return await step("DOT", "250 OK")


def authenticate(server, session, envelope, mechanism, data):
    right = isinstance(data, LoginPassword) and (data.login, data.password) == (
        told["user"].encode(),
        told["password"].encode(),
    )
    return AuthResult(success=right, handled=False, auth_data=told["user"])


async def main():
    context = None
    if told["tls"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(told["certificate"], told["key"])
    starttls = told["tls"] == "starttls"

    def session():
        return Server(
            Handler(),
            hostname="mail.test",
            enable_SMTPUTF8=not told["ascii"],
            tls_context=context if starttls else None,
            require_starttls=starttls,
            auth_required=told["user"] != "",
            auth_require_tls=starttls,
            auth_exclude_mechanism=told["not_offered"],
            authenticator=authenticate,
            loop=loop,
        )

    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        session, "127.0.0.1", 0, ssl=context if told["tls"] == "implicit" else None
    )
    tell(port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


def end_with_parent():
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


threading.Thread(target=end_with_parent, daemon=True).start()
asyncio.run(main())
