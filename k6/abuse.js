// What is sent by mistake or on purpose and must come to nothing: malformed and oversized
// requests, codes that are not on the list, wrong addresses, bots, double submits, forged
// returns, notifications and links. Each has one right answer, takes no seat, and costs the
// people beside it nothing: their limits of time are judged meanwhile. How to run it, and
// its settings, stand in lib.js.
//
// By default 50 of them a second for 2 minutes, and 5 good bookings a second beside. It is
// for the API itself: a firewall before it answers most of this in its own words.
import exec from 'k6/execution';
import http from 'k6/http';
import { Counter, Rate } from 'k6/metrics';
import {
  answers, arriving, bookTwice, candidates, countCut, dice, find, inTime, look, must, mustInTime, objectives, payFor, person,
  ponder, prepare, ratePerSecond, review, sameSeat, seek, wish, within, wrong,
} from './lib.js';

const rate = ratePerSecond(50);
const few = Math.max(1, Math.round(rate / 10));
const abandoned = 1 / 3;

const tookSeat = new Counter('seats_by_abuse');
const rightly = new Rate('abuse_answered'); // with its one right answer, within 8 s

export const options = {
  scenarios: {
    abusers: arriving('abuser', rate, 0.2, 3, '2m'),
    insistent: arriving('insists', few, 1, 10, '2m'),
    neighbours: arriving('neighbour', few, 3, 20, '2m'),
  },
  thresholds: Object.assign({}, objectives, {
    seats_by_abuse: [must('count==0')],
    abuse_answered: [mustInTime('rate>=0.99')],
    'booking_answered{scenario:neighbours}': [mustInTime('rate>=0.999')],
    'booking_decided{scenario:neighbours}': [mustInTime('rate>=0.99')],
    'seat_ms{scenario:neighbours}': [mustInTime(`p(99)<${within(300)}`)],
    'seats{scenario:insistent}': ['count>0'], // else nothing of them was tried
    'seats{scenario:neighbours}': ['count>0'],
    dropped_iterations: [mustInTime('count==0')],
  }),
  setupTimeout: '60s',
  teardownTimeout: '5m',
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
};

export const setup = prepare;

// teardown looks once more whether the last of it took a seat, or all of it if it was little.
export function teardown(data) {
  review(data);
  if (data) {
    stillFree();
  }
}

const target = (__ENV.TARGET || '').replace(/\/$/, '');
const json = 'application/json';

// The last candidate is the one whose name is used here, and never books. Of the others
// the first half are the neighbours, the second those who insist.
const victim = person(candidates - 1);
const half = Math.max(1, Math.floor((candidates - 1) / 2));

function send(method, path, body, headers) {
  return http.request(method, target + path, body, { headers, redirects: 0, timeout: '20s', tags: { name: 'abuse' } });
}

function posted(body, type) {
  return send('POST', '/book', body, type === '' ? {} : { 'Content-Type': type });
}

// abuses are what is sent, and the one right answer; good is a booking that could be, with
// these changes.
const abuses = [
  ['no JSON', 'invalid_request', () => posted('code=1', json)],
  ['nothing', 'invalid_request', () => posted('', json)],
  ['no members', 'invalid_request', () => posted('{}', json)],
  ['a list', 'invalid_request', () => posted('[]', json)],
  ['an unknown member', 'invalid_request', (good) => posted(good({ admin: true }), json)],
  ['a number for a code', 'invalid_request', (good) => posted(good({ code: 5 }), json)],
  ['a code given twice', 'invalid_request', (good) => posted(good({}).replace('{', '{"code":"AB-1",'), json)],
  ['more after the end', 'invalid_request', (good) => posted(`${good({})}{}`, json)],
  ['a broken character', 'invalid_request', (good) => posted(good({}).replace('{', '{"\\ud800":1,'), json)],
  ['a key of two words', 'invalid_request', (good) => send('POST', '/book', good({}), { 'Content-Type': json, 'Idempotency-Key': 'two words' })],
  ['a key that is too long', 'invalid_request', (good) => send('POST', '/book', good({}), { 'Content-Type': json, 'Idempotency-Key': 'k'.repeat(129) })],
  ['a large body', 'body_too_large', (good) => posted(good({ website: 'x'.repeat(9 * 1024) }), json)],
  ['plain text', 'unsupported_media_type', (good) => posted(good({}), 'text/plain')],
  ['no media type', 'unsupported_media_type', (good) => posted(good({}), '')],
  ['parts', 'unsupported_media_type', (good) => posted(good({}), 'multipart/form-data; boundary=x')],
  ['an unknown level', 'invalid_level', (good) => posted(good({ level: 'N99' }), json)],
  ['a level that is none', 'invalid_level', (good) => posted(good({ level: 'N1"}' }), json)],
  ['a code that is none', 'invalid_code', (good) => posted(good({ code: 'a b' }), json)],
  ['a code off the list', 'invalid_code', (good) => posted(good({ code: 'AB-900000001' }), json)],
  ['a code in Cyrillic', 'invalid_code', (good) => posted(good({ code: victim.code.replace('A', '\u0410').replace('B', '\u0412') + '\u0410' }), json)],
  ['another address', 'email_mismatch', (good) => posted(good({ email: `x${victim.email}` }), json)],
  ['another address in a search', 'email_mismatch', () => posted(JSON.stringify({ code: victim.code, email: `x${victim.email}`, find: true }), json)],
  ['reading instead of sending', 'method_not_allowed', () => send('GET', '/book', null, {})],
  ['deleting', 'method_not_allowed', () => send('DELETE', '/book', null, {})],
  ['a path that is none', 'not_found', () => send('GET', '/admin/candidates', null, {})],
  ['a forged link', 'not_found', () => send('GET', `/booking/${'A'.repeat(60)}`, null, {})],
  ['a link that is none', 'not_found', () => send('GET', '/booking/..%2f..%2fetc', null, {})],
];

// hold holds the answer to one of them to its kind.
function hold(what, res, kind) {
  const a = answers(what, res, kind);
  rightly.add(a.kind === kind && inTime(res));
  return a;
}

// holdForged holds an answer that has no kind: it is right, or says "later", or is wrong.
function holdForged(what, want, res, isRight, isLater) {
  rightly.add(isRight && inTime(res));
  if (res.status === 0) {
    countCut(what, res);
  } else if (!isRight && !isLater) {
    wrong(`${what}, want ${want}`, [res.status, res.headers.Location, res.body]);
  }
}

// abuser sends one after the other of them, and those whose answer is of another kind.
export function abuser(data) {
  const i = exec.scenario.iterationInTest;
  const level = wish(i, data.levels);
  const good = (changes) => JSON.stringify(Object.assign({ code: victim.code, email: victim.email, level }, changes));
  const others = [bot, forgedReturn, forgedNotification, stillFree];
  const n = i % (abuses.length + others.length);
  if (n >= abuses.length) {
    others[n - abuses.length](good);
    return;
  }
  const [what, slug, attempt] = abuses[n];
  hold(what, attempt(good), slug);
}

// bot fills in the hidden field: it hears what everybody hears, and has nothing.
function bot(good) {
  const a = hold('a bot', posted(good({ website: 'https://example.org' }), json), '202');
  if (a.kind === '202') {
    hold('the link of a bot', send('GET', `/booking/${a.token}`, null, {}), 'not_found');
  }
}

function unknownReturn(what, payment) {
  const res = send('GET', `/payment/callback?paymentID=${payment}&status=success&signature=AAAAAAAAAA`, null, {});
  const error = /[?&]error=(unknown|busy)/.exec(res.status === 303 && res.headers.Location || '');
  holdForged(what, '303 with error=unknown', res, error !== null && error[1] === 'unknown', error !== null);
}

function forgedReturn() {
  unknownReturn('a return of no payment of ours', 'TR0011AAAAAAAA1796097600412');
}

// forgedNotification has the shape of one, and is of another topic. Where no topic is
// configured there is no such path.
function forgedNotification() {
  const res = send('POST', '/payment/webhook', JSON.stringify({
    Type: 'Notification', MessageId: '5a3b1c1e-0000-4000-8000-000000000001', Timestamp: '2026-12-01T04:00:00.000Z',
    TopicArn: 'arn:aws:sns:ap-southeast-1:000000000000:forged', Message: '{}', SignatureVersion: '2',
    Signature: 'AAAA', SigningCertURL: 'https://sns.example.org/forged.pem',
  }), { 'Content-Type': 'text/plain; charset=UTF-8' });
  holdForged('a forged notification', '403', res, res.status === 403 || res.status === 404, false);
}

// stillFree looks whether any of it has taken a seat.
function stillFree() {
  const a = find(victim);
  if (a.kind === 'duplicate') {
    tookSeat.add(1);
  } else if (!['not_found', 'try_again', 'no_answer', 'internal', ''].includes(a.kind)) {
    wrong('a search for a booking that was never made, want not_found', a);
  }
}

// insists is somebody who has a seat and wants another one, by every way there is.
export function insists(data) {
  const i = exec.scenario.iterationInTest;
  const n = half + i % half;
  const p = person(n);
  const level = wish(n, data.levels);
  const key = `${data.run}-${n}`;
  const both = bookTwice(p, level, key);
  const seat = both.find((a) => a.kind === '202');
  if (!seat) {
    return;
  }
  sameSeat(seat, seek(p, level, key)); // the same again
  sameSeat(seat, seek(p, level, `${key}-other`));
  sameSeat(seat, seek(p, level, '')); // and without a key
  const elsewhere = data.levels.find((one) => one.id !== level);
  if (elsewhere) {
    const body = JSON.stringify({ code: p.code, email: p.email, level: elsewhere.id });
    const res = send('POST', '/book', body, { 'Content-Type': json, 'Idempotency-Key': key });
    hold('the same key for another level', res, 'idempotency_mismatch');
  }
  unknownReturn('a return with a forged signature', seat.payment);
  const held = look(seat.token);
  if (held !== null && held.state !== 'held') {
    wrong('a booking after a forged return, want it held', held);
  }
}

// neighbour is somebody who books as one should.
export function neighbour(data) {
  const i = exec.scenario.iterationInTest % half;
  const a = seek(person(i), wish(i, data.levels), `${data.run}-${i}`);
  if (a.kind !== '202' || dice(i, 'leaves') < abandoned) {
    return;
  }
  ponder();
  payFor(a);
}
