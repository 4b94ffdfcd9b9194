(function () {
  'use strict';
  const POLL = 2000; // ms between two questions
  const GIVE_UP = 8000; // ms, more than the server lets one wait
  const STALE = 8; // seconds; the counters come every two
  const STALE_COUNT = 30; // seconds; the rows are counted every ten
  // From the bottom of the stack to its top.
  const PHASES = ['paid', 'held', 'paying', 'payable', 'new', 'refused'];
  const TROUBLES = {
    ledger_unknown: 'Redis has no sale: it has lost everything, or a sale begins anew. Runbook: ledger-unknown.',
    seats_unread: 'Redis does not answer. Runbook: ledger-unread.',
    rows_unread: 'The rows of the ledger cannot be counted. Runbook: ledger-unread.'
  };
  const SILENT = 'The process behind this page does not answer. Runbook: instance-down.';

  const by = id => document.getElementById(id);
  const number = n => n.toLocaleString('en-GB');
  const two = n => String(n).padStart(2, '0');
  let last = null; // the last figures
  let received = 0; // when they came, by a clock that nobody sets
  let silence = ''; // why there are no newer ones
  let drawn = ''; // which count the charts show
  let asking = false;
  let timer = 0;

  // put writes only what is new: a screen reader tells what is written.
  function put(id, text) {
    const e = by(id);
    if (e.textContent !== text) e.textContent = text;
    return e;
  }

  function ageOf(seconds) {
    return seconds + (performance.now() - received) / 1000;
  }

  // now is the ledger's time, whatever this machine's clock says.
  function now() {
    return Date.parse(last.at) + ageOf(last.age_seconds) * 1000;
  }

  function clock(at, seconds) {
    const d = new Date(at);
    return two(d.getHours()) + ':' + two(d.getMinutes()) + (seconds ? ':' + two(d.getSeconds()) : '');
  }

  function zone(at) {
    const m = -new Date(at).getTimezoneOffset();
    return 'UTC' + (m < 0 ? '-' : '+') + two(Math.floor(Math.abs(m) / 60)) + ':' + two(Math.abs(m) % 60);
  }

  function span(seconds) {
    const s = Math.max(0, Math.ceil(seconds));
    const h = Math.floor(s / 3600);
    if (h >= 48) return Math.floor(h / 24) + ' days';
    return (h > 0 ? h + ':' + two(Math.floor(s / 60) % 60) : String(Math.floor(s / 60))) + ':' + two(s % 60);
  }

  function ago(seconds) {
    const s = Math.floor(seconds);
    return s < 120 ? s + ' s' : span(s) + (s < 3600 ? ' min' : ' h');
  }

  function element(name, text, kind) {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    if (kind) e.className = kind;
    return e;
  }

  function row(head, cells) {
    const tr = document.createElement('tr');
    const th = element('th', head);
    th.scope = 'row';
    tr.append(th);
    for (const c of cells) tr.append(c instanceof Node ? c : element('td', c));
    return tr;
  }

  // shape adds a shape to a drawing.
  function shape(svg, name, attributes, text) {
    const e = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const a of Object.keys(attributes)) e.setAttribute(a, attributes[a]);
    if (text !== undefined) e.textContent = text;
    svg.append(e);
  }

  // canvas empties a drawing; one unit of it is one pixel.
  function canvas(svg) {
    const w = svg.clientWidth;
    const h = svg.clientHeight;
    svg.textContent = '';
    svg.setAttribute('viewBox', '0 0 ' + w + ' ' + h);
    return { svg: svg, w: w, h: h };
  }

  // seatBar draws seats as parts of their cap.
  function seatBar(svg, seats) {
    const c = canvas(svg);
    const unit = seats.cap > 0 ? c.w / seats.cap : 0;
    shape(svg, 'rect', { class: 'track', width: c.w, height: c.h });
    if (seats.admitted === null) return;
    const paid = seats.paid || 0;
    shape(svg, 'rect', { class: 'held', width: Math.min(c.w, seats.admitted * unit), height: c.h });
    shape(svg, 'rect', { class: 'paid', width: Math.min(c.w, paid * unit), height: c.h });
  }

  // ceiling is the end of an axis, of which the half is a whole number too.
  function ceiling(n) {
    for (let power = 0.1; ; power *= 10) {
      for (const m of [10, 12, 14, 16, 18, 20, 24, 30, 40, 50, 60, 80]) {
        const v = Math.round(m * power);
        if (v >= n && v >= 2 && v % 2 === 0) return v;
      }
    }
  }

  // axes draws grid and words, a time for every so many minutes of so many points, and
  // tells where the bars go.
  function axes(svg, points, most, every, perMinute) {
    const c = canvas(svg);
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const top = ceiling(most);
    // A drawing that is not laid out has no size, and no room for the words.
    const plot = { x: 0.5 * rem * (number(top).length + 1), y: 0.6 * rem, h: Math.max(0, c.h - 1.7 * rem), top: top };
    plot.w = Math.max(0, c.w - plot.x - 0.6 * rem) / points.length;
    for (const part of [0, 0.5, 1]) {
      const y = plot.y + plot.h * (1 - part);
      shape(svg, 'line', { class: 'grid', x1: plot.x, x2: plot.x + plot.w * points.length, y1: y, y2: y });
      shape(svg, 'text', { x: plot.x - 0.3 * rem, y: y + 0.25 * rem, 'text-anchor': 'end' }, number(top * part));
    }
    const minutes = Math.ceil(3.2 * rem / (plot.w * perMinute * every)) * every; // as there is room for
    points.forEach((p, i) => {
      const at = new Date(p.at);
      if (at.getSeconds() !== 0 || at.getMinutes() % minutes !== 0) return;
      shape(svg, 'text', { x: plot.x + plot.w * i, y: c.h - 0.2 * rem, 'text-anchor': i * plot.w < rem ? 'start' : 'middle' }, clock(at));
    });
    return plot;
  }

  function bar(svg, plot, kind, i, from, n) {
    if (n <= 0) return;
    const gap = plot.w > 4 ? 1 : 0;
    const unit = plot.h / plot.top;
    shape(svg, 'rect', {
      class: kind, x: plot.x + plot.w * i, width: plot.w - gap, y: plot.y + plot.h - (from + n) * unit, height: n * unit
    });
  }

  function admissions(id, points, words, every, perMinute) {
    const svg = by(id);
    const plot = axes(svg, points, points.reduce((n, p) => Math.max(n, p.admitted), 0), every, perMinute);
    const most = points.reduce((a, p) => p.admitted > a.admitted ? p : a, points[0]);
    const full = points[points.length - 2];
    let sum = 0;
    points.forEach((p, i) => {
      sum += p.admitted;
      bar(svg, plot, i === points.length - 1 ? 'going' : 'held', i, 0, p.admitted);
    });
    svg.setAttribute('aria-label', 'Bars: ' + number(full.admitted) + ' admitted in the last full ' + words +
      ', at most ' + number(most.admitted) + ', at ' + clock(most.at, id === 'recent') + ', together ' + number(sum) +
      '. The last bar, an outline, is not over yet.');
  }

  function stack(d) {
    const svg = by('stack');
    const sum = p => PHASES.reduce((n, phase) => n + (p[phase] || 0), 0);
    const most = d.series.reduce((n, p) => Math.max(n, sum(p)), 0);
    const plot = axes(svg, d.series, most, 10, 1);
    d.series.forEach((p, i) => {
      let from = 0;
      if (p.held === undefined) shape(svg, 'rect', { class: 'gap', x: plot.x + plot.w * i, width: plot.w, y: plot.y, height: plot.h });
      for (const phase of PHASES) {
        bar(svg, plot, phase, i, from, p[phase] || 0);
        from += p[phase] || 0;
      }
    });
    if (d.total.cap <= plot.top && most > 0) {
      const y = plot.y + plot.h * (1 - d.total.cap / plot.top);
      shape(svg, 'line', { class: 'cap', x1: plot.x, x2: plot.x + plot.w * d.series.length, y1: y, y2: y });
    }
    svg.setAttribute('aria-label', 'Columns by minute: ' +
      PHASES.map(phase => number(d.phases[phase]) + ' ' + phase).join(', ') + ' now, of ' + number(d.total.cap) + ' seats, the dashed line.');
    put('since', 'Holds by phase are known since ' + clock(d.since) + ', when this was first looked at, and not where it is grey, when nobody looked; paid is known always. ' +
      'Admissions before ' + clock(d.since) + ' are the seats that were still taken then.');
  }

  function levels(d) {
    const body = by('levels');
    body.textContent = '';
    const bars = [];
    for (const l of d.levels) {
      const damaged = l.admitted === null;
      let left = element('td', l.left === null ? '–' : number(l.left));
      if (!damaged && l.left === 0) left = element('td', 'full', 'alarm');
      const tr = row(l.name || l.id, [
        l.paid === undefined ? '–' : number(l.paid),
        damaged ? element('td', 'counter damaged', 'alarm') : l.held === undefined ? number(l.admitted) : number(l.held),
        left, number(l.cap)
      ]);
      const under = element('tr', undefined, 'under');
      under.setAttribute('aria-hidden', 'true');
      const cell = element('td');
      cell.colSpan = 5;
      const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
      svg.setAttribute('class', 'bar');
      cell.append(svg);
      under.append(cell);
      body.append(tr, under);
      bars.push([svg, l]);
    }
    for (const [svg, l] of bars) seatBar(svg, l);
  }

  function phases(d) {
    const body = by('phases');
    body.textContent = '';
    for (const phase of PHASES) {
      const tr = row('', [number(d.phases[phase])]);
      tr.firstChild.append(element('span', undefined, 'key ' + phase), phase);
      body.append(tr);
    }
  }

  function waits(d) {
    const lines = [];
    if (d.to_decide > 0) lines.push(['alarm', 'ATTENTION: ' + number(d.to_decide) + ' in doubt for a person to decide. Runbook: doubt.']);
    if (d.in_doubt > d.to_decide) lines.push(['warn', number(d.in_doubt - d.to_decide) + ' in doubt: looked at again. Runbook: rows-in-doubt.']);
    if (d.past_deadline > 0) lines.push(['alarm', 'ATTENTION: ' + number(d.past_deadline) + ' past their deadline. Runbook: holds-past-deadline.']);
    if (d.unreadable > 0) lines.push(['alarm', 'ATTENTION: ' + number(d.unreadable) + ' rows cannot be read. Runbook: ledger-mismatch.']);
    if (lines.length === 0) lines.push(['calm', 'nothing']);
    const list = by('waits');
    if (list.textContent === lines.map(l => l[1]).join('')) return;
    list.textContent = '';
    for (const [kind, text] of lines) list.append(element('li', text, kind));
  }

  function minutes(d) {
    const body = by('minutes');
    body.textContent = '';
    for (let i = d.series.length - 1; i >= 0; i--) {
      const p = d.series[i];
      const cells = [number(p.admitted), number(p.paid)];
      for (const phase of PHASES.slice(1)) cells.push(p[phase] === undefined ? '–' : number(p[phase]));
      body.append(row(clock(p.at), cells));
    }
  }

  function charts() {
    if (!last) return;
    levels(last);
    seatBar(by('total'), last.total);
    if (last.series === undefined) return;
    admissions('hour', last.series, 'minute', 10, 1);
    admissions('recent', last.recent, 'ten seconds', 1, 6);
    stack(last);
    if (by('details').open) minutes(last);
  }

  function state(d) {
    const opens = d.opens_at ? (Date.parse(d.opens_at) - now()) / 1000 : 0;
    let word = 'CLOSED';
    let kind = '';
    // A damaged counter closes what it counts, which is not the same as sold.
    const damaged = [d.total].concat(d.levels).some(s => s.admitted === null);
    if (d.open && d.reason === 'sold_out' && damaged) {
      word = 'COUNTER DAMAGED';
      kind = 'full';
    } else if (d.open && d.reason === 'sold_out') {
      word = 'SOLD OUT';
      kind = 'full';
    } else if (d.open) {
      word = 'OPEN';
      kind = 'open';
    } else if (d.opens_at) {
      word = opens > 0 ? 'OPENS ' + (opens > 86400 ? new Date(d.opens_at).toLocaleDateString('en-GB') + ' ' : '') + clock(d.opens_at, true) : 'OPENING';
      kind = 'soon';
    }
    put('state', word).className = kind;
    put('countdown', opens > 0 ? 'in ' + span(opens) : '');
  }

  // tick is what changes without new figures.
  function tick() {
    const counted = last && last.counted_at !== undefined ? ageOf(last.counted_age_seconds) : 0;
    let wrong = silence;
    if (last) {
      const seconds = ageOf(last.age_seconds);
      state(last);
      put('clock', clock(now(), true) + ' ' + zone(now()));
      let text = 'figures are ' + ago(seconds) + ' old';
      if (seconds <= STALE && counted > STALE_COUNT) text = 'paid and holds are ' + ago(counted) + ' old';
      put('age', text).className = seconds > STALE || counted > STALE_COUNT ? 'stale' : '';
      if (last.counted_at !== undefined) put('counted', ', counted ' + ago(counted) + ' ago');
      if (!wrong && last.trouble) wrong = TROUBLES[last.trouble] || last.trouble;
    }
    put('trouble', wrong).hidden = !wrong;
  }

  function draw() {
    tick();
    if (!last) return;
    const d = last;
    const taken = d.total.admitted === null ? 'counter damaged' : number(d.total.admitted);
    put('taken', taken).className = d.total.admitted === null ? 'alarm' : '';
    put('cap', 'of ' + number(d.total.cap));
    put('left', d.total.left === null ? '–' : number(d.total.left));
    put('paid', d.total.paid === undefined ? '–' : number(d.total.paid));
    put('held', d.total.held === undefined ? '–' : number(d.total.held));
    if (d.counted_at !== undefined) {
      put('sale', d.sale);
      put('rate', number(d.admissions_per_minute));
    }
    document.title = taken + ' of ' + number(d.total.cap) + (d.sale ? ', ' + d.sale : '');
    if (d.counted_at === drawn) {
      levels(d);
      seatBar(by('total'), d.total);
      return;
    }
    drawn = d.counted_at;
    charts();
    if (d.counted_at !== undefined) {
      phases(d);
      waits(d);
    }
  }

  async function ask() {
    if (asking || document.hidden) return; // who does not look costs nothing
    asking = true;
    clearTimeout(timer);
    const patience = new AbortController();
    const bound = setTimeout(() => patience.abort(), GIVE_UP);
    try {
      const answer = await fetch('wall.json', { cache: 'no-store', signal: patience.signal });
      const body = await answer.json();
      if (answer.ok) {
        last = body;
        received = performance.now();
        silence = '';
      } else {
        silence = body.message;
      }
    } catch (e) {
      silence = SILENT;
    }
    clearTimeout(bound);
    asking = false;
    draw();
    timer = setTimeout(ask, POLL);
  }

  document.addEventListener('visibilitychange', ask);
  window.addEventListener('resize', charts);
  by('details').addEventListener('toggle', () => last && last.series && minutes(last));
  setInterval(tick, 1000);
  ask();
})();
