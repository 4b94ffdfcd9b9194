// The opening minute: everybody books in the same seconds, at a rate that waits for no
// answer, while four times as many read. A third of those who get a seat leave it, the
// others pay; some click twice, some try again from another device, and who finds a level
// full may take another one. How to run it, and its settings, stand in lib.js.
//
// By default it is the launch of the design: 2,000 bookings a second for 25 s by 40,000
// candidates. With a slow gateway that is ten thousand VUs or more, so a large load
// generator, or several; SCALE=0.05 is for a laptop. seatctl rehearse is the same day with the whole crowd, the closing and
// the audit; this script is for a deployment that stands somewhere else.
import exec from 'k6/execution';
import {
  arriving, bookTwice, candidates, dice, mustInTime, objectives, payFor, person, ponder, prepare, ratePerSecond, readPage,
  readStatus, review, sameSeat, seek, wish,
} from './lib.js';

const rate = ratePerSecond(2000);
const readsPerBooking = 4;
const abandoned = 1 / 3;
const doubleClicks = 0.04;
const otherDevices = 0.06;
const takeAnother = 0.5; // of the levels, when theirs is full

export const options = {
  scenarios: {
    bookings: arriving('candidate', rate, 1, 6, '25s'),
    readers: arriving('reader', rate * readsPerBooking, 0.1, 1, '25s'),
  },
  thresholds: Object.assign({}, objectives, {
    seats: ['count>0'], // a rush in which nobody gets a seat proves nothing
    dropped_iterations: [mustInTime('count==0')], // then the load generator is too small
  }),
  setupTimeout: '60s',
  teardownTimeout: '5m',
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
};

export const setup = prepare;
export const teardown = review;

// candidate is one person's booking. After the last of the candidates the first ones come
// again, half of them from another device.
export function candidate(data) {
  const i = exec.scenario.iterationInTest;
  const p = person(i);
  const own = `${data.run}-${i % candidates}`;
  const again = i >= candidates && dice(i, `device ${i}`) < 0.5;
  let a = first(i, p, wish(i, data.levels), again ? `${own}-${i}` : own);
  if (a.kind === 'level_full' && dice(i, 'another') < takeAnother) {
    const status = readStatus();
    const left = status === null ? undefined : status.levels.find((level) => level.left > 0);
    if (left) {
      ponder();
      a = seek(p, left.id, `${own}-${left.id}`);
    }
  }
  if (a.kind !== '202') {
    return;
  }
  if (dice(i, 'other device') < otherDevices) {
    sameSeat(a, seek(p, a.level, `${own}-other`));
  }
  if (dice(i, 'leaves') < abandoned) {
    return;
  }
  ponder();
  payFor(a);
}

function first(i, p, level, key) {
  if (dice(i, 'clicks twice') >= doubleClicks) {
    return seek(p, level, key);
  }
  const both = bookTwice(p, level, key);
  return both.find((a) => a.kind === '202') || both[0];
}

// reader is somebody who watches: three looks at the figures to one load of the page.
export function reader() {
  if (exec.scenario.iterationInTest % 4 === 0) {
    readPage();
  } else {
    readStatus();
  }
}
