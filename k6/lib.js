// What rush.js, steady.js and abuse.js share: their settings, a candidate's requests, and
// what an honest answer is. Run them with k6 (https://k6.io) 1.0 or newer, from the root of
// the repository, against a deployment that pays at the mock gateway and nowhere else:
//
//   k6 run -e TARGET=http://127.0.0.1:8080 -e GATEWAY=http://127.0.0.1:36137 k6/rush.js
//
// Its sale must be open and its candidates loaded, without seats from a run before: reset the
// sale in between, or move FIRST. Exit status 0: every threshold holds; 99: one does not, and
// with most of them the run ends at once; 107: a setting is wrong; 108: the run was refused,
// and says why.
//
//   TARGET      address of page and API, without a path
//   GATEWAY     address of the mock gateway, as cmd/local prints it
//   RATE        bookings a second (each script has its default)
//   FOR         how long new ones begin, such as 25s or 5m
//   SCALE       of RATE, and of CANDIDATES where that is left out; 0.05 is a twentieth.
//               Default 1
//   CANDIDATES  how many made-up candidates there are. Default 40000 times SCALE
//   FIRST       number of the first one's code. Default 100001, as in examples/candidates.csv
//   CODES       a candidates file instead of them: CSV with the header code,email; a path
//               from this folder, or an absolute one
//   THINK       most seconds between a person's steps. Default 3
//   SLACK       stretches every limit of time: above 1 what is measured is no objective any
//               more, and only right and wrong is judged, as on a busy small machine
//
// Nobody who pays here has anything but play money: see refuseUnlessMock and lead.
import { sleep } from 'k6';
import { SharedArray } from 'k6/data';
import exec from 'k6/execution';
import http from 'k6/http';
import { Counter, Rate, Trend } from 'k6/metrics';

// ---- settings ----

function setting(name, otherwise) {
  const value = __ENV[name];
  return value === undefined || value === '' ? otherwise : value;
}

function number(name, otherwise, least) {
  const value = Number(setting(name, otherwise));
  if (!Number.isFinite(value) || value < least) {
    throw new Error(`${name}=${__ENV[name]}: want a number, ${least} or more`);
  }
  return value;
}

function duration(name, otherwise) {
  const value = setting(name, otherwise);
  if (!/^[1-9][0-9]*(s|m|h)$/.test(value)) {
    throw new Error(`${name}=${value}: want a whole number with its unit, such as 25s or 5m`);
  }
  return value;
}

const scale = number('SCALE', 1, 0.001);
const think = number('THINK', 3, 0);
const slack = number('SLACK', 1, 1);
const first = number('FIRST', 100001, 1);
const listed = setting('CODES', '') === '' ? null : new SharedArray('candidates', readCandidates);

// candidates is how many people there are.
export const candidates = listed ? listed.length : Math.max(1, Math.round(number('CANDIDATES', 40000 * scale, 1)));

// ratePerSecond is RATE times SCALE. k6 wants a whole number.
export function ratePerSecond(otherwise) {
  return Math.max(1, Math.round(number('RATE', otherwise, 0.001) * scale));
}

// lasting is FOR.
export function lasting(otherwise) {
  return duration('FOR', otherwise);
}

// within is a limit in milliseconds as a threshold has it.
export function within(ms) {
  return ms * slack;
}

// arriving is a scenario whose iterations begin at a rate that waits for no answer: who is
// slow to answer must not be spared for it. An iteration usually takes so many seconds, and
// at most so many: k6 makes as many VUs as that needs.
export function arriving(run, rate, usual, most, otherwise) {
  return {
    executor: 'constant-arrival-rate',
    exec: run,
    rate: rate,
    timeUnit: '1s',
    duration: lasting(otherwise),
    preAllocatedVUs: Math.ceil(rate * usual) + 5,
    maxVUs: Math.ceil(rate * most) + 5,
    gracefulStop: '3m',
  };
}

// ---- people ----

function readCandidates() {
  const lines = open(__ENV.CODES).split(/\r?\n/).filter((line) => line !== '');
  if (lines[0] !== 'code,email') {
    throw new Error(`CODES=${__ENV.CODES}: want a first line of code,email`);
  }
  const list = lines.slice(1).map((line) => {
    const [code, email, more] = line.split(',');
    if (!code || !email || more !== undefined) {
      throw new Error(`CODES=${__ENV.CODES}: want code,email on each line, got ${line}`);
    }
    return { code, email };
  });
  if (list.length === 0) {
    throw new Error(`CODES=${__ENV.CODES}: want a candidate after the header`);
  }
  return list;
}

// person is a candidate by their number, which begins again after the last.
export function person(i) {
  const n = i % candidates;
  if (listed) {
    return { code: listed[n].code, email: listed[n].email };
  }
  return { code: `AB-${first + n}`, email: `candidate${first + n}@example.org` };
}

// dice is even in [0, 1), and the same for a person and a question each time: whoever
// comes again wants what they wanted before.
export function dice(i, question) {
  let h = Math.imul(i % candidates + 1, 0x9e3779b1);
  for (let n = 0; n < question.length; n++) {
    h = Math.imul(h ^ question.charCodeAt(n), 0x85ebca6b);
    h ^= h >>> 13;
  }
  return (Math.imul(h, 0xc2b2ae35) >>> 0) / 0x100000000;
}

// wish is a person's level; the larger a level, the more want it.
export function wish(i, levels) {
  let left = dice(i, 'level') * levels.reduce((sum, level) => sum + level.cap, 0);
  for (const level of levels) {
    left -= level.cap;
    if (left < 0) {
      return level.id;
    }
  }
  return levels[levels.length - 1].id;
}

// ponder is a person's time between two steps.
export function ponder() {
  if (think > 0) {
    sleep(think * (0.3 + 0.7 * Math.random()));
  }
}

// ---- what is measured ----

const answered = new Rate('booking_answered'); // within 8 s, as the contract has it
const decided = new Rate('booking_decided'); // a seat or a clear no
const refusal = new Trend('refusal_ms', true); // a clear no, status 4xx
const admission = new Trend('seat_ms', true); // a 202
const returned = new Rate('return_answered'); // a payer's return, within 8 s and without an error
const reads = new Rate('read_answered'); // the page, status.json and an own booking, within 8 s
const pressed = new Rate('payment_pressed'); // of those who went to pay: the gateway's page took it
const seats = new Counter('seats'); // people told of one
const broken = new Counter('server_errors'); // 5xx that the contract has not
const unexpected = new Counter('unexpected_answers');
const twice = new Counter('admitted_twice'); // one code, two payments at a time
const chargedTwice = new Counter('charged_twice'); // one code, money twice
const unconfirmed = new Counter('paid_unconfirmed'); // paid, and not told so in 2 minutes
const paid = new Counter('paid'); // people told that they have
const reviewed = new Counter('payments_reviewed'); // of this run and with money, in the gateway's list

const answerWithin = within(8000); // ms

// took is how long somebody waited for an answer, in milliseconds. k6's duration begins once
// there is a connection; blocked is what came before, connecting and TLS with it.
function took(res) {
  return res.timings.blocked + res.timings.duration;
}

// inTime tells whether an answer, if that is what it was, came as soon as the contract has it.
export function inTime(res) {
  return res.status !== 0 && took(res) <= answerWithin;
}

// must is a threshold that ends the run: after the first wrong answer the rest proves
// nothing.
export function must(threshold) {
  return { threshold, abortOnFail: true };
}

// mustInTime is one of a share or a percentile, which ends the run only when there is enough
// of it to judge. At the end it is judged in any case, but for a share of nothing.
export function mustInTime(threshold) {
  return { threshold, abortOnFail: true, delayAbortEval: '10s' };
}

// objectives are those of docs/objectives.md, the rehearsal's bound for half of the refusals,
// and that nobody has two seats or pays twice, as far as that can be seen from outside. What
// nobody tried breaks no rule: somebody must have paid, and the gateway must show it.
export const objectives = {
  booking_answered: [mustInTime('rate>=0.999')],
  booking_decided: [mustInTime('rate>=0.99')],
  refusal_ms: [mustInTime(`p(50)<${within(10)}`), mustInTime(`p(99)<${within(250)}`)],
  return_answered: [mustInTime('rate>=0.99')],
  read_answered: [mustInTime('rate>=0.999')],
  payment_pressed: [mustInTime('rate>=0.99')],
  server_errors: [must('count==0')],
  unexpected_answers: [must('count==0')],
  admitted_twice: [must('count==0')],
  charged_twice: [must('count==0')],
  paid_unconfirmed: [must('count==0')],
  paid: ['count>0'],
  payments_reviewed: ['count>0'],
};

// Refusals are answers; what is one our own metrics say.
http.setResponseCallback(null);

// show prints the first few of each VU; there may be thousands.
let shown = 0;
function show(what, said) {
  if (shown++ < 3) {
    console.error(`${what}: ${JSON.stringify(said).slice(0, 300)}`);
  }
}

function saidBy(res) {
  return [res.status, res.body];
}

// wrong counts an answer that nobody may give. said is what was answered.
export function wrong(what, said) {
  unexpected.add(1);
  show(what, said);
}

// countBroken tells whether an answer is an error of the server's. The contract has some
// answers of status 5xx; it says so then.
function countBroken(res, isContract) {
  if (res.status < 500 || isContract) {
    return false;
  }
  broken.add(1);
  show('server error', saidBy(res));
  return true;
}

// ---- only ever the mock ----

const target = setting('TARGET', '').replace(/\/$/, '');
const gateway = setting('GATEWAY', '').replace(/\/$/, '');
const site = /^https?:\/\/[^\/?#@]+$/;

function originOf(url) {
  const found = /^(https?:\/\/[^\/?#]*)/i.exec(url);
  return found ? found[1].toLowerCase() : '';
}

function pathOf(url) {
  return url.slice(originOf(url).length);
}

// prepare is setup(): it refuses whatever is not a rehearsal before a seat is taken, and
// says which levels there are, and when by the gateway's clock the run began.
export function prepare() {
  if (!site.test(target)) {
    exec.test.abort(`TARGET=${target}: want the address of page and API without a path, such as http://127.0.0.1:8080`);
  }
  const began = refuseUnlessMock();
  const res = http.get(`${target}/status.json`, { timeout: '10s', tags: { name: 'status.json' } });
  if (res.status !== 200) {
    exec.test.abort(`${target}/status.json: ${res.status || res.error}: want 200; is the deployment up, and TARGET its address?`);
  }
  const status = res.json();
  if (!status.open) {
    exec.test.abort(`${target}: booking is not open: open it with seatctl open, then start again`);
  }
  const levels = status.levels.map((level) => ({ id: level.id, cap: level.cap }));
  return { levels, began, run: Date.now().toString(36) };
}

// refuseUnlessMock gives the gateway's time, in milliseconds.
function refuseUnlessMock() {
  if (!site.test(gateway)) {
    exec.test.abort(`GATEWAY=${gateway}: want the address of the mock gateway that the deployment pays at, as cmd/local and cmd/mockgateway print it; there is no run against any other gateway`);
  }
  const res = http.get(`${gateway}/mock/settings`, { timeout: '10s', redirects: 0, responseType: 'none', tags: { name: 'mock' } });
  if (res.headers['X-Mock-Gateway'] !== 'holdfast') {
    exec.test.abort(`${gateway} does not say that it is the mock gateway: nothing is booked. Point the deployment, and GATEWAY, at cmd/mockgateway`);
  }
  const now = Date.parse(res.headers.Date);
  if (Number.isNaN(now)) {
    exec.test.abort(`${gateway} says no time: without its Date header nobody can tell this run's payments from those before. Ask it without the proxy that takes the header away`);
  }
  return now;
}

// lead ends the run unless a payment link leads to the mock: this deployment sells in
// earnest, whatever GATEWAY is.
function lead(link) {
  if (originOf(link) !== gateway.toLowerCase()) {
    exec.test.abort(`a payment link leads to ${originOf(link) || link} and not to GATEWAY=${gateway}: nothing was paid, and the hold lapses by itself. If that is the mock by another name, set GATEWAY to it; else this deployment sells in earnest: point it at cmd/mockgateway first`);
  }
}

// ---- a candidate's requests ----

// statuses are those of the contract's section 3, by slug, "closed" by its reason.
const statuses = {
  invalid_request: 400, invalid_level: 400, invalid_code: 400, email_mismatch: 400,
  duplicate: 409, level_full: 409,
  not_found: 404, method_not_allowed: 405, body_too_large: 413, unsupported_media_type: 415,
  idempotency_mismatch: 422, internal: 500,
  sold_out: 429, not_open: 503, try_again: 503, payment_unavailable: 502,
};
const retried = ['try_again', 'payment_unavailable'];

function bodyOf(res) {
  try {
    const body = res.json();
    return body !== null && typeof body === 'object' ? body : {};
  } catch (e) {
    return {};
  }
}

function isText(value) {
  return typeof value === 'string' && value !== '';
}

// hear is what an answer of the API says. Its kind is '202', a slug (of "closed" its
// reason), 'no_answer', or '' for one that is not the contract's.
export function hear(res) {
  const body = bodyOf(res);
  const a = {
    status: res.status, ms: took(res), kind: '', after: Number(res.headers['Retry-After'] || 0),
    payment: body.payment_id || '', link: body.payment_url || '', left: body.seconds_left,
    token: isText(body.booking_url) ? body.booking_url.slice(body.booking_url.lastIndexOf('/') + 1) : '',
    level: body.level || '', paid: body.paid === true,
  };
  if (res.status === 0) {
    a.kind = 'no_answer';
  } else if (res.status === 202) {
    a.kind = isText(body.payment_id) && isText(body.payment_url) && isText(body.booking_url) && isText(body.level) &&
      !Number.isNaN(Date.parse(body.expires_at)) && body.seconds_left >= 0 ? '202' : '';
  } else if (isText(body.message) && isText(body.request_id)) {
    const slug = body.error === 'closed' ? body.reason : body.error;
    a.kind = statuses[slug] === res.status ? slug : '';
  }
  if (a.kind !== '' && a.kind !== 'no_answer' && !honest(a, res)) {
    a.kind = '';
  }
  return a;
}

// answers holds an answer to the one that is right, by its kind; nobody's is wrong while the
// server asks to try again.
export function answers(what, res, kind) {
  const a = hear(res);
  if (a.kind === kind || a.kind === 'try_again') {
    return a;
  }
  if (a.kind === 'no_answer') {
    countCut(what, res);
  } else if (!countBroken(res, a.kind !== '' && a.kind !== 'internal')) {
    wrong(`${what}, want ${kind}`, saidBy(res));
  }
  return a;
}

const hungUp = 1050; // k6's code of a request that its own timeout has ended

// countCut counts an answer that never came, unless it was the script that did not wait for
// it: a connection that is cut is all that is seen from outside of a panic.
export function countCut(what, res) {
  if (res.error_code !== hungUp) {
    wrong(`${what}, want an answer`, res.error);
  }
}

// honest tells whether an answer has what belongs to it, and nothing that cannot be.
function honest(a, res) {
  if (res.headers['Cache-Control'] !== 'no-store') {
    return false;
  }
  if (retried.includes(a.kind)) {
    return a.after > 0;
  }
  if (a.kind === 'level_full') {
    return a.level !== '';
  }
  if (a.kind === 'duplicate') {
    return a.link === '' || !a.paid && a.left >= 0;
  }
  return true;
}

function bookRequest(p, level, key) {
  const headers = { 'Content-Type': 'application/json', Accept: 'application/json' };
  if (key) {
    headers['Idempotency-Key'] = key;
  }
  const body = JSON.stringify({ code: p.code, email: p.email, level });
  return ['POST', `${target}/book`, body, { headers, redirects: 0, timeout: '20s', tags: { name: 'book' } }];
}

// judge measures an answer to POST /book. Only what has measured it may pay for it.
function judge(res) {
  const a = hear(res);
  answered.add(a.kind !== '' && a.kind !== 'internal' && inTime(res));
  decided.add(a.kind !== '' && a.kind !== 'no_answer' && a.kind !== 'internal' && !retried.includes(a.kind));
  if (!countBroken(res, a.kind !== '' && a.kind !== 'internal') && a.kind === '') {
    wrong('answer that is not the contract\'s', saidBy(res));
  }
  if (a.kind === '202') {
    admission.add(a.ms);
  } else if (a.status >= 400 && a.status < 500) {
    refusal.add(a.ms);
  }
  if (a.link !== '') {
    lead(a.link);
  }
  return a;
}

// book asks for a seat once.
export function book(p, level, key) {
  const [method, url, body, params] = bookRequest(p, level, key);
  const res = http.request(method, url, body, params);
  const a = judge(res);
  expect(a, res, level);
  return a;
}

// expect counts an answer of the contract that a good booking cannot get.
function expect(a, res, level) {
  if (a.kind === '' || a.kind === 'no_answer' || a.kind === 'internal') {
    return; // counted already
  }
  if (!good.includes(a.kind)) {
    wrong(`answer to a good booking, want one of ${good.join(', ')}`, saidBy(res));
  } else if ((a.kind === '202' || a.kind === 'level_full') && a.level !== level) {
    wrong(`answer about another level than ${level}`, saidBy(res));
  }
}

const good = ['202', 'duplicate', 'level_full', 'sold_out', 'not_open', 'try_again', 'payment_unavailable'];
const tries = 4;

// seek asks for a seat as the page does: again after Retry-After when there is no clear
// answer, with the same key.
export function seek(p, level, key) {
  for (let n = 1; ; n++) {
    const a = book(p, level, key);
    const unclear = a.kind === 'no_answer' || retried.includes(a.kind) || a.kind === 'duplicate' && a.after > 0;
    if (!unclear || n === tries) {
      if (a.kind === '202') {
        seats.add(1);
      }
      return a;
    }
    sleep(Math.max(a.after, think / 2, 0.1) * (1 + Math.random() / 2));
  }
}

// sameSeat checks what somebody who was told of a seat hears when they ask again: there is
// one payment of theirs at a time.
export function sameSeat(before, now) {
  const other = now.kind === '202' && now.payment !== before.payment || now.link !== '' && now.link !== before.link;
  if (other) {
    twice.add(1);
    console.error(`one code has two payments: ${before.payment} and ${now.payment || now.link}`);
  }
}

// bookTwice sends one booking twice at the same moment, as a double click does, and gives
// both answers.
export function bookTwice(p, level, key) {
  const request = bookRequest(p, level, key);
  const got = http.batch([request, request]);
  const both = got.map((res) => judge(res));
  both.forEach((a, n) => expect(a, got[n], level));
  const seated = both.find((a) => a.kind === '202');
  if (seated) {
    seats.add(1);
    both.forEach((a) => sameSeat(seated, a));
  }
  return both;
}

// find asks where a booking is, which takes no seat ever.
export function find(p) {
  const res = http.post(`${target}/book`, JSON.stringify({ code: p.code, email: p.email, find: true }), {
    headers: { 'Content-Type': 'application/json' }, redirects: 0, timeout: '20s', tags: { name: 'find' },
  });
  const a = judge(res);
  if (a.kind === '202') {
    wrong('a search for a booking took a seat', saidBy(res));
  }
  return a;
}

const form = { 'Content-Type': 'application/x-www-form-urlencoded' };

// pay presses "pay" at the mock's page, and gives the payer's way home: a path of the site.
export function pay(link) {
  lead(link);
  for (let n = 1; n <= tries; n++) {
    const res = http.post(link, 'outcome=success', { headers: form, redirects: 0, timeout: '20s', tags: { name: 'pay' } });
    if (res.status === 303 && isText(res.headers.Location)) {
      return pathOf(res.headers.Location);
    }
    sleep(n * Math.max(think, 0.1));
  }
  return '';
}

// comeBack is the browser that the gateway sends home, and gives the booking's token; ''
// without a clear answer.
export function comeBack(path) {
  for (let n = 1; n <= tries; n++) {
    const res = http.get(target + path, { redirects: 0, timeout: '20s', tags: { name: 'callback' } });
    const location = res.headers.Location || '';
    const token = /[?&]booking=([^&]+)/.exec(location); // as it stands in an address
    const isHome = res.status === 303 && pathOf(location).startsWith('/result?');
    const again = /[?&](paymentID=|error=busy)/.test(location); // an outage was in the way
    returned.add(isHome && !again && token !== null && inTime(res));
    if (res.status !== 0 && !countBroken(res, false) && (!isHome || !token && !again)) {
      wrong('a payer\'s return, want 303 to the result page of their booking', [res.status, location, res.body]);
      return '';
    }
    if (isHome && !again) {
      return token[1];
    }
    sleep(n * Math.max(think, 0.1));
  }
  return '';
}

// look is the result page asking for its booking; null without a clear answer.
export function look(token) {
  const res = http.get(`${target}/booking/${token}`, { redirects: 0, timeout: '10s', tags: { name: 'booking' } });
  measureRead(res);
  if (res.status === 200) {
    const body = bodyOf(res);
    if (['held', 'paying', 'refused', 'paid', 'released', 'refund_due'].includes(body.state)) {
      return body;
    }
  }
  if (res.status !== 0) {
    answers('own booking', res, 'its state');
  }
  return null;
}

// payFor pays for a seat and waits until the booking says so: a seat that was paid for is
// paid within two minutes. A refused payment is an answer too: the mock may be told to. It
// tells whether the seat is paid.
export function payFor(a) {
  const path = pay(a.link);
  pressed.add(path !== '');
  if (path === '') {
    return false; // the gateway is out: nobody has paid
  }
  const token = comeBack(path) || a.token;
  for (const end = Date.now() + within(120000); ;) {
    const booking = look(token);
    if (booking !== null && booking.state === 'paid') {
      paid.add(1);
      return true;
    }
    if (booking !== null && booking.state === 'refused') {
      return false;
    }
    if (Date.now() > end) {
      unconfirmed.add(1);
      console.error(`paid, and after two minutes the booking says ${booking === null ? 'nothing' : booking.state}`);
      return false;
    }
    sleep(0.2 + think / 2);
  }
}

// ---- readers ----

// measureRead measures what somebody reads.
function measureRead(res) {
  reads.add(res.status === 200 && inTime(res));
}

// isAway is somebody who reads and finds nobody, or is asked to come back: no answer yet,
// which measureRead has counted.
function isAway(res) {
  return res.status === 0 || res.status === 503 && Number(res.headers['Retry-After']) > 0;
}

// readPage loads the page as a browser without a copy of it does.
export function readPage() {
  const res = http.get(`${target}/`, { headers: { 'Accept-Encoding': 'gzip' }, responseType: 'none', timeout: '10s', tags: { name: 'page' } });
  measureRead(res);
  if (res.status !== 200 && !isAway(res) && !countBroken(res, false)) {
    wrong('the page', saidBy(res));
  }
}

// readStatus reads status.json, and holds it to what it may say.
export function readStatus() {
  const res = http.get(`${target}/status.json`, { timeout: '10s', tags: { name: 'status.json' } });
  measureRead(res);
  if (isAway(res) || countBroken(res, false)) {
    return null;
  }
  const status = bodyOf(res);
  const isFigure = (figure) => figure && Number.isInteger(figure.left) && figure.left >= 0 && figure.left <= figure.cap;
  const ok = res.status === 200 && typeof status.open === 'boolean' && status.version > 0 &&
    Array.isArray(status.levels) && status.levels.every(isFigure) && isFigure(status.total);
  if (!ok) {
    wrong('status.json', saidBy(res));
    return null;
  }
  return status;
}

// ---- afterwards ----

// review is teardown(): the gateway's own list says whose money moved. In these scripts
// nobody pays twice, so that a code with two payments that moved money and gave none back
// was charged for one seat twice.
export function review(data) {
  if (!data) {
    return; // refused before anything began
  }
  const res = http.get(`${gateway}/mock/payments`, { timeout: '60s', tags: { name: 'mock' } });
  if (res.status !== 200) {
    wrong('the gateway\'s list of payments', saidBy(res));
    return;
  }
  const moved = {};
  for (const payment of res.json()) {
    const kept = (payment.transactions || []).filter((t) => !t.refunds || t.refunds.length === 0).length;
    if (kept === 0 || Date.parse(payment.createdAt) < data.began) { // both by the gateway's clock
      continue;
    }
    reviewed.add(1);
    const who = payment.merchantInvoiceNumber.split('-').slice(0, 2).join('-'); // candidate and sale
    moved[who] = (moved[who] || 0) + kept;
    if (moved[who] > 1) {
      chargedTwice.add(1);
      console.error(`the gateway has taken money ${moved[who]} times for ${who}`);
    }
  }
}
