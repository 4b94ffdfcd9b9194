// The day after: a few people a second come by, read, book, pay, look at their booking and
// find it again. Nothing is scarce and nothing is slow, so that the limits of time are
// tighter than in the rush: those of the launch's quiet hours, a median of milliseconds and
// 0.3 s for the slowest in a hundred. How to run it, and its settings, stand in lib.js.
//
// By default 5 people a second for 10 minutes, of which each needs a candidate: 3,000.
import exec from 'k6/execution';
import {
  arriving, candidates, dice, find, look, must, mustInTime, objectives, payFor, person, ponder, prepare, ratePerSecond, readPage,
  readStatus, review, seek, within, wish, wrong,
} from './lib.js';

const abandoned = 1 / 3;

export const options = {
  scenarios: {
    people: arriving('visitor', ratePerSecond(5), 6, 20, '10m'),
  },
  thresholds: Object.assign({}, objectives, {
    booking_answered: [must('rate==1')], // with so few, one is too many
    refusal_ms: [mustInTime(`p(50)<${within(10)}`), mustInTime(`p(99)<${within(100)}`)],
    seat_ms: [mustInTime(`p(99)<${within(300)}`)],
    seats: ['count>0'],
    dropped_iterations: [must('count==0')],
  }),
  setupTimeout: '60s',
  teardownTimeout: '5m',
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
};

export const setup = prepare;
export const teardown = review;

// visitor is one person's whole visit.
export function visitor(data) {
  const i = exec.scenario.iterationInTest;
  const p = person(i);
  readPage();
  readStatus();
  ponder();
  const a = seek(p, wish(i, data.levels), `${data.run}-${i % candidates}`);
  if (a.kind !== '202') {
    return;
  }
  ponder();
  if (dice(i, 'leaves') < abandoned) {
    const booking = look(a.token);
    if (booking !== null && (booking.state !== 'held' || booking.payment_url !== a.link)) {
      wrong('own booking, want it held, with the link of the first answer', booking);
    }
    return;
  }
  if (!payFor(a)) {
    return;
  }
  const found = find(p);
  const unclear = ['try_again', 'no_answer', 'internal', ''].includes(found.kind); // counted already
  if (!unclear && (found.kind !== 'duplicate' || !found.paid || found.token !== a.token)) {
    wrong('a search for a paid booking, want it paid, with its own link', found);
  }
}
