// The ids that are the page's interface.
//
// Booking page: main#book, form, code, email, level (radios by name, in levels),
// submit (aria-disabled, with submit-note, while it is of no use), find (asks for a
// booking made before, and never for a seat), code-error, email-error, level-error;
// state (where the sale stands; data-phase: unknown, soon, open, sold_out,
// closed), countdown (countdown-figure, countdown-text), opens (date and time),
// note. Result page: main#result (data-state: as the server says, or checking,
// unknown; data-slug: the words), title, message, level, time, pay, again
// (button), look (button: ask now), elsewhere, book-link, find-link, details
// (level, fee, candidate, mail), keep.
// Both: lang, live (the one live region), and the panel: answer (data-slug),
// answer-title, answer-message, answer-time, answer-pay, answer-booking,
// answer-check (button: send the same again, or find), answer-id (request id),
// wait, wait-text, stop.
(function () {
  'use strict';

  function el(id) { return document.getElementById(id); }

  function has(object, name) { return Object.prototype.hasOwnProperty.call(object, name); }

  // Not the time of day: a clock that is wrong, or is set, does not matter.
  function now() { return performance.now(); }

  // A pause is stretched by chance: the same one for everyone only moves the spike.
  function spread(ms) { return ms * (1 + Math.random() / 2); }

  function isWeb(url) { return typeof url === 'string' && /^https?:[/][/]/i.test(url); }

  // ---- what is kept ----

  // A browser's store, or memory where it is forbidden; lasts tells which.
  function store(kind) {
    var memory = {};
    return {
      get: function (name) {
        try { return window[kind].getItem(name) || memory[name] || null; } catch (e) { return memory[name] || null; }
      },
      set: function (name, value) {
        memory[name] = value;
        try { window[kind].setItem(name, value); } catch (e) { return; }
      },
      remove: function (name) {
        delete memory[name];
        try { window[kind].removeItem(name); } catch (e) { return; }
      },
      lasts: function (name) {
        try { return window[kind].getItem(name) === memory[name]; } catch (e) { return false; }
      }
    };
  }

  var tab = store('sessionStorage');
  var browser = store('localStorage');

  // The one intent of this tab: want (code, email, level), key (Idempotency-Key),
  // sent (a request for a seat had no clear answer yet), booking (its token), state
  // (of that booking, as it was seen last), was (the token of the booking that ended,
  // or that a new payment has taken the place of), done (paid).
  var intent = null;

  function recall() {
    try { intent = JSON.parse(tab.get('holdfast')); } catch (e) { intent = null; }
    if (!intent || !intent.want) { intent = null; }
  }

  function keep() { tab.set('holdfast', JSON.stringify(intent)); }

  function newKey() {
    var bytes = [];
    try { bytes = crypto.getRandomValues(new Uint8Array(16)); } catch (e) {
      for (var i = 0; i < 16; i++) { bytes.push(Math.floor(Math.random() * 256)); }
    }
    return Array.prototype.map.call(bytes, function (b) { return (b + 256).toString(16).slice(1); }).join('');
  }

  function isOf(want) {
    return Boolean(intent) && intent.want.code.toUpperCase() === want.code.toUpperCase() &&
      intent.want.email.toLowerCase() === want.email.toLowerCase();
  }

  function candidate(want) {
    recall();
    if (!isOf(want)) { intent = { want: want, key: '', sent: false, booking: '', state: '', was: '', done: false }; }
  }

  // The same wish keeps its key, so that a repeat, even after a reload, is the
  // same request and not a second one.
  function intend(want) {
    candidate(want);
    if (!intent.key || intent.want.level !== want.level) {
      intent.key = newKey();
      intent.sent = false;
      intent.done = false;
    }
    intent.want = want;
    keep();
  }

  // What was typed stays, for the details of a paid seat or for another try. A request
  // without an answer outlives the booking it was to replace.
  function endIntent(paid) {
    if (!intent || (intent.sent && !paid)) { return; }
    intent.was = intent.booking || intent.was;
    intent.key = '';
    intent.booking = '';
    intent.state = '';
    intent.sent = false;
    intent.done = paid;
    keep();
  }

  // A refused payment is over, and its key with it; a request for a new one keeps its own.
  function note(state) {
    intent.state = state;
    if (state === 'refused' && !intent.sent) { intent.key = ''; }
    keep();
    if (/^(paid|released|refund_due)$/.test(state)) { endIntent(state === 'paid'); }
  }

  // ---- words ----

  var texts = JSON.parse(el('texts').textContent);
  var sale = JSON.parse(el('sale').textContent);
  var lang = 'en';
  var painters = [];

  function digits(text) {
    return lang !== 'bn' ? String(text) : String(text).replace(/[0-9]/g, function (d) { return String.fromCharCode(0x9e6 + Number(d)); });
  }

  function fill(text, values) {
    return text.replace(/[{]([a-z]+)[}]/g, function (all, name) { return values && has(values, name) ? digits(values[name]) : all; });
  }

  function t(key, values) { return fill(texts[lang].ui[key], values); }

  // What is data, such as a name or an address, keeps its digits.
  function tData(key, name, value) { return texts[lang].ui[key].replace('{' + name + '}', function () { return value; }); }

  function words(slug) { return texts[lang].answers[has(texts.en.answers, slug) ? slug : 'internal']; }

  function count(n, unit) { return t('n_' + unit + (n === 1 ? '' : 's'), { n: n }); }

  function span(seconds) {
    var s = Math.max(0, Math.ceil(seconds));
    if (s < 60) { return count(s, 'second'); }
    if (s < 3600) { return count(Math.floor(s / 60), 'minute') + (s % 60 ? ' ' + count(s % 60, 'second') : ''); }
    if (s < 86400) { return count(Math.floor(s / 3600), 'hour') + ' ' + count(Math.floor(s % 3600 / 60), 'minute'); }
    return count(Math.floor(s / 86400), 'day') + ' ' + count(Math.floor(s % 86400 / 3600), 'hour');
  }

  function figure(seconds) {
    var s = Math.max(0, Math.ceil(seconds));
    function two(n) { return (n < 10 ? '0' : '') + n; }
    var clock = two(Math.floor(s % 86400 / 3600)) + ':' + two(Math.floor(s % 3600 / 60)) + ':' + two(s % 60);
    return (s < 86400 ? '' : count(Math.floor(s / 86400), 'day') + ' ') + digits(clock);
  }

  function when(at) {
    return new Date(at).toLocaleString(lang === 'bn' ? 'bn-BD' : 'en-GB', {
      weekday: 'long', day: 'numeric', month: 'long', year: 'numeric', hour: '2-digit', minute: '2-digit', timeZoneName: 'short'
    });
  }

  // What has not changed is left alone; no text, no element.
  function write(where, text) { if (where.textContent !== text) { where.textContent = text; } }

  function put(id, text) {
    write(el(id), text);
    el(id).hidden = !text;
  }

  function link(id, url) {
    el(id).hidden = !isWeb(url);
    if (el(id).hidden) { el(id).removeAttribute('href'); } else if (el(id).getAttribute('href') !== url) { el(id).href = url; }
  }

  // Everything on show is written anew from what is known, every half second and
  // in whichever language.
  function paint() { painters.forEach(function (p) { p(); }); }

  // The one thing that is read aloud unasked; emptied first, so that the same may be
  // said twice. What is said in one breath is all heard.
  var breath = [];
  function announce(text) {
    el('live').textContent = '';
    breath.push(text);
    setTimeout(function () {
      if (breath.length) { el('live').textContent = breath.join(' '); }
      breath = [];
    }, 50);
  }

  function tell(slug) { announce(words(slug).title + '. ' + words(slug).message); }

  function firstLanguage() {
    var asked = new URLSearchParams(location.search).get('lang');
    if (asked && has(texts, asked)) { browser.set('holdfast-lang', asked); return asked; }
    var kept = browser.get('holdfast-lang');
    if (kept && has(texts, kept)) { return kept; }
    var wanted = navigator.languages || [navigator.language];
    for (var i = 0; i < wanted.length; i++) {
      var l = String(wanted[i]).slice(0, 2).toLowerCase();
      if (has(texts, l)) { return l; }
    }
    return 'en';
  }

  function speak(l) {
    var other = l === 'bn' ? 'en' : 'bn';
    lang = l;
    document.documentElement.lang = l;
    put('lang', texts[other].language);
    el('lang').lang = other;
    document.querySelectorAll('[data-t]').forEach(function (e) { e.textContent = t(e.getAttribute('data-t')); });
    el('live').textContent = '';
    breath = [];
    paint();
  }

  el('lang').addEventListener('click', function () {
    var l = el('lang').lang;
    browser.set('holdfast-lang', l);
    speak(l);
  });

  // ---- asking ----

  // Retry-After is seconds, or a date, which is the server's as much as its Date is.
  function waitOf(retry, date) {
    return (Number(retry) > 0 ? Number(retry) * 1000 : Math.max(0, Date.parse(retry) - date)) || 0;
  }

  async function read(url, options) {
    var answer = { status: 0, url: '', after: 0, body: null, lost: false, sent: now(), got: 0, date: NaN, slack: 1000, age: 0 };
    var res = await fetch(url, options);
    var age = Number(res.headers.get('Age'));
    answer.got = now();
    answer.status = res.status;
    answer.url = res.url;
    answer.age = age > 0 ? age * 1000 : 0;
    answer.date = Date.parse(res.headers.get('Date')) + answer.age;
    answer.slack = age > 0 ? 2000 : 1000;
    answer.after = waitOf(res.headers.get('Retry-After'), answer.date);
    try { answer.body = await res.json(); } catch (e) { answer.body = null; }
    if (typeof answer.body !== 'object') { answer.body = null; }
    return answer;
  }

  // ask never throws. body is null unless the answer is JSON; without an answer
  // status is 0, and lost tells a lack of connection from one that is slow.
  async function ask(url, options, timeout) {
    var abort = window.AbortController ? new window.AbortController() : null;
    var slow = false;
    var timer = 0;
    var answer;
    if (abort) { options.signal = abort.signal; }
    try {
      answer = await Promise.race([read(url, options), new Promise(function (done, fail) {
        timer = setTimeout(function () {
          slow = true;
          if (abort) { abort.abort(); }
          fail(new Error('slow'));
        }, timeout);
      })]);
    } catch (e) {
      answer = { status: 0, after: 0, body: null, lost: !slow };
    }
    clearTimeout(timer);
    if (isOurs(answer.body)) { learnTime(answer); }
    return answer;
  }

  function isOurs(b) {
    return Boolean(b) && (typeof b.error === 'string' || typeof b.state === 'string' || Array.isArray(b.levels) || isWeb(b.payment_url));
  }

  // An edge that refuses; asked more often, it only refuses for longer.
  function isBlocked(answer) {
    return (answer.status === 403 || answer.status === 429) && !(answer.body && typeof answer.body.error === 'string');
  }

  function lookUp(token) {
    return ask('/booking/' + encodeURIComponent(token), { cache: 'no-store', headers: { 'Accept': 'application/json' } }, 10000);
  }

  // A sleeper naps until its time or until it is woken; without a time, until then.
  function sleeper() {
    var me = {
      wake: function () { return; },
      nap: function (ms) {
        return new Promise(function (done) {
          me.wake = done;
          if (ms) { setTimeout(done, ms); }
        });
      }
    };
    return me;
  }

  function onView(look) {
    document.addEventListener('visibilitychange', function () { if (!document.hidden) { look(); } });
  }

  // ---- the server's clock ----

  // Server time less now() lies between these two. Date and Age are whole seconds,
  // cut: when the request was sent it was not yet a second more by each of them.
  var clock = { low: -Infinity, high: Infinity };

  // Answers that contradict each other (the machine slept, a clock was set): the
  // newest counts alone.
  function learnTime(answer) {
    if (!(answer.date > 0)) { return; }
    var low = answer.date - answer.got;
    var high = answer.date + answer.slack - answer.sent;
    var both = { low: Math.max(low, clock.low), high: Math.min(high, clock.high) };
    clock = both.low <= both.high ? both : { low: low, high: high };
  }

  // The earliest that it can be at the server.
  function serverTime() { return clock.low + now(); }

  // ---- the panel: what became of a request ----

  function waitText(until) { return until > now() ? t('try_again_in', { time: span((until - now()) / 1000) }) : ''; }

  var panel = null; // slug, and what the answer had with it
  var pausing = null; // the pause before the next try
  var working = false;

  // The booking's address answers programs; people read the page about it.
  function resultOf(token) { return token ? location.origin + '/result?booking=' + encodeURIComponent(token) : ''; }

  function tokenOf(booking) { return typeof booking === 'string' ? booking.slice(booking.lastIndexOf('/') + 1) : ''; }

  function say(slug, body, check) {
    var b = body || {};
    panel = {
      slug: slug,
      token: tokenOf(b.booking_url),
      pay: b.payment_url,
      level: /^duplicate/.test(slug) && b.level ? levelName(b.level) : '',
      until: b.seconds_left > 0 ? now() + b.seconds_left * 1000 : 0,
      booking: resultOf(tokenOf(b.booking_url)),
      id: slug === 'internal' || /^(body_too|unsupp|method|not_found|invalid_request)/.test(slug) ? b.request_id : '',
      check: check || '',
      later: 0, // not before
      over: false
    };
    paint();
  }

  function levelName(id) {
    var level = sale.levels.filter(function (l) { return l.id === id; })[0];
    return level ? level.name : id;
  }

  function hush() { panel = null; paint(); }

  function shown() { return !panel ? '' : panel.over ? 'over' : panel.slug; }

  painters.push(function () {
    el('answer').hidden = !panel;
    if (!panel) { return; }
    if (panel.until && now() >= panel.until && !panel.over) {
      panel.over = true;
      tell('over');
    }
    var over = panel.over;
    var slug = shown();
    el('answer').setAttribute('data-slug', slug);
    put('answer-title', words(slug).title);
    put('answer-message', words(slug).message + (panel.level ? ' ' + t('level') + ': ' + panel.level + '.' : ''));
    put('answer-time', panel.until && !over ? t('time_left', { time: span((panel.until - now()) / 1000) }) : waitText(panel.later));
    put('answer-id', panel.id ? tData('reference', 'id', panel.id) : '');
    link('answer-pay', over ? '' : panel.pay);
    link('answer-booking', panel.booking);
    put('answer-check', panel.check && !working ? t(panel.check) : '');
  });

  painters.push(function () {
    el('wait').hidden = !pausing;
    if (!pausing) { return; }
    put('wait-text', pausing.offline ? t('retry_online') : t('retry', { time: span((pausing.until - now()) / 1000), n: pausing.tries }));
  });

  // pause is before the eyes of the person; false when they stop it. Without a
  // connection it lasts until there is one; a browser that is wrong about that is
  // not believed for more than half a minute.
  function pause(ms, tries, offline) {
    return new Promise(function (done) {
      pausing = {
        until: now() + (offline ? 30000 : ms), tries: tries, offline: offline,
        end: function (goOn) { pausing = null; paint(); done(goOn); }
      };
      paint();
    });
  }

  function endPause() { if (pausing && now() >= pausing.until) { pausing.end(true); } }

  // A network that comes back does so for very many at once.
  window.addEventListener('online', function () {
    if (!pausing || !pausing.offline) { return; }
    pausing.offline = false;
    pausing.until = Math.min(pausing.until, now() + Math.random() * 3000);
    paint();
  });
  el('stop').addEventListener('click', function () { if (pausing) { pausing.end(false); } });

  // ---- sending ----

  var patience = 240000; // then a person decides; time without a connection does not count
  var away = 600000; // who comes back after that is asked first
  var longest = 120000; // the longest Retry-After that is waited for
  var retried = { try_again: true, payment_unavailable: true, duplicate_working: true, offline: true, blocked: true, busy: true };
  var unclear = { try_again: true, offline: true, busy: true, interrupted: true, internal: true };

  // sort names an answer. What is not our JSON (the edge, a proxy, no network)
  // decides nothing, whatever its status.
  function sort(answer, find) {
    var b = answer.body || {};
    if (answer.status === 202 && isWeb(b.payment_url)) { return find ? 'duplicate_payable' : 'going'; }
    if (answer.lost && navigator.onLine === false) { return 'offline'; }
    if (isBlocked(answer)) { return 'blocked'; }
    if (answer.status < 400 || typeof b.error !== 'string') { return 'busy'; }
    if (find && answer.status === 404 && b.error === 'not_found') { return 'no_seat'; }
    if (b.error === 'closed') { return b.reason === 'sold_out' ? 'sold_out' : 'not_open'; }
    if (b.error === 'duplicate') {
      return b.paid ? 'duplicate_paid' : isWeb(b.payment_url) ? 'duplicate_payable' : answer.after ? 'duplicate_working' : 'duplicate';
    }
    return has(texts.en.answers, b.error) ? b.error : 'busy';
  }

  function delay(slug, tries, after) {
    var slow = slug === 'blocked';
    var ms = (slow ? 15000 : 1500) * Math.pow(1.5, tries - 1);
    return spread(Math.max(Math.min(ms, slow ? 60000 : 20000), after));
  }

  // To find takes no seat.
  function post(trap, find) {
    var body = { code: intent.want.code, email: intent.want.email, website: trap };
    var headers = { 'Content-Type': 'application/json', 'Accept': 'application/json' };
    if (find) { body.find = true; } else {
      body.level = intent.want.level;
      headers['Idempotency-Key'] = intent.key;
    }
    return ask('/book', { method: 'POST', cache: 'no-store', headers: headers, body: JSON.stringify(body) }, 20000);
  }

  // That nothing was found says nothing of a request that may still be on its way.
  function remember(slug, body, find) {
    var token = slug === 'going' || /^duplicate/.test(slug) ? tokenOf(body.booking_url) : '';
    if (token || !find) { intent.sent = has(unclear, slug); }
    if (token && intent.booking !== token) {
      intent.was = intent.booking || intent.was;
      intent.booking = token;
      intent.state = '';
    }
    if (slug === 'idempotency_mismatch') { intent.key = newKey(); }
    keep();
    if (slug === 'duplicate_paid') { endIntent(true); }
    // Who has no seat leaves nothing of themselves in a browser that others use too.
    if (slug === 'no_seat' && !intent.sent && !intent.booking) { tab.remove('holdfast'); }
  }

  // book sends the intent, or looks for its candidate's seat, until an answer decides,
  // the person stops it or patience ends; that answer is then on show.
  async function book(trap, find) {
    var began = now();
    var heard = Date.now(); // of the day: the other clock may stop while the machine sleeps
    var later = 0;
    var slug = 'sending';
    var answer;
    working = true;
    say(slug);
    announce(words(slug).title);
    for (var tries = 1; ; tries++) {
      if (!find) {
        intent.sent = true;
        keep();
      }
      answer = await post(trap, find);
      slug = sort(answer, find);
      if (!has(retried, slug)) { break; }
      var ms = delay(slug, tries, answer.after);
      if (slug === 'blocked') { slug = 'busy'; }
      if (answer.after > longest) { later = now() + answer.after; break; }
      var news = panel.slug !== slug;
      say(slug);
      if (news) { tell(slug); }
      var offline = slug === 'offline';
      var paused = now();
      if (!offline) { heard = Date.now(); }
      if (now() - began > patience || !await pause(ms, tries + 1, offline) || Date.now() - heard > away) { slug = stopped(slug, find); break; }
      if (offline) { began += now() - paused; }
    }
    working = false;
    remember(slug, answer.body || {}, find);
    say(slug, answer.body, slug === 'interrupted' ? 'check' : has(unclear, slug) || has(retried, slug) ? 'again' : '');
    panel.later = later;
    if (/^duplicate/.test(slug) && !panel.booking) { panel.booking = resultOf(intent.booking || (slug === 'duplicate_paid' ? intent.was : '')); }
    if (slug === 'duplicate' && !panel.booking) { panel.check = 'have_seat'; }
    tell(slug);
    paint();
    return { slug: slug, body: answer.body, sent: answer.sent };
  }

  var leaving = false;

  // The page stays locked until it is left, or shown again.
  function leave(url) {
    leaving = true;
    working = true;
    location.assign(url);
  }

  // Back from the payment, with the page as it was left: what was under way here is
  // over. A request that somebody walked away from still is.
  window.addEventListener('pageshow', function (event) {
    if (event.persisted && leaving) {
      leaving = false;
      working = false;
      hush();
    }
  });

  // A request for a seat that is given up without an answer may have gone through.
  function stopped(slug, find) { return !has(unclear, slug) ? slug : find ? 'busy' : 'interrupted'; }

  // ---- booking page ----

  function booking() {
    var form = el('form');
    var doc = null; // status.json, and what an answer has told since
    var floor = 0; // the least version that is news
    var learnt = 0; // when the last news came
    var fresh = 0; // when the server last said how the sale stands
    var finding = false; // what was sent last asked for a booking made before
    var failed = 0;
    var phase = '';
    var errors = {}; // by field: the slug of an answer, or a text of the page
    var told = -1; // what the countdown has said last
    var date = null; // the opening, as it was written last
    var levels = form.querySelectorAll('input[name=level]');
    var figures = sleeper();
    var seat = sleeper();
    var notBefore = 0; // a booking is not looked at again

    function chosen() { return form.querySelector('input[name=level]:checked'); }

    // ---- where the sale stands ----

    function opensAt() { return doc && !doc.open && doc.opens_at ? Date.parse(doc.opens_at) : 0; }

    function untilOpen() { return (opensAt() - serverTime()) / 1000; }

    // A time that has come is an open sale, before any document says so.
    function isOpen() { return doc.open || (opensAt() > 0 && untilOpen() <= 0); }

    // A level is full when nothing is left, whatever its "full" says.
    function isFull(level) { return !(level.left > 0); }

    function soldOut() {
      return (doc.levels.length > 0 && doc.levels.every(isFull)) || Boolean(doc.total && !(doc.total.left > 0));
    }

    // What nobody has confirmed for a while forbids nothing: the server decides.
    function isStale() { return now() - fresh > 30000; }

    // An opening whose time is known comes by itself.
    function phaseNow() {
      var p = !doc ? 'unknown' : isOpen() ? (soldOut() ? 'sold_out' : 'open') : opensAt() > 0 ? 'soon' : 'closed';
      return isStale() && p !== 'open' && !(p === 'soon' && isFinite(untilOpen())) ? 'unknown' : p;
    }

    function mayBook() { return phase === 'open' || phase === 'unknown'; }

    function levelOf(id) { return doc ? doc.levels.filter(function (l) { return l.id === id; })[0] : undefined; }

    function nameOf(id) {
      return sale.levels.filter(function (l) { return l.id === id; }).map(function (l) { return l.name; })[0] || id;
    }

    // A cache may be behind: an older document is no news.
    function learn(s, at) {
      if (!(s.version >= floor)) { return; }
      var before = doc;
      if (!before || s.version > before.version) { learnt = now(); }
      fresh = Math.max(fresh, at);
      floor = s.version;
      doc = s;
      if (before) { announceFull(before); }
      move();
    }

    function announceFull(before) {
      var names = before.levels.filter(function (l) {
        var after = levelOf(l.id);
        return !isFull(l) && after && isFull(after);
      }).map(function (l) { return nameOf(l.id); });
      if (names.length && !soldOut()) { announce(tData('level_full_now', 'level', names.join(', '))); }
    }

    // What an answer of the server says is newer than every document that was known
    // when it was asked for; one that has come since may be newer still.
    function amend(sent, change) {
      if (doc && learnt > sent) { return; }
      if (!doc) { doc = { version: -1, open: true, levels: [] }; }
      floor = doc.version + 1;
      fresh = now();
      change(doc);
      move();
    }

    // move notices that the sale stands otherwise than before, and says so.
    function move() {
      var p = phaseNow();
      if (p !== phase) {
        phase = p;
        told = -1;
        if (p !== 'unknown') { announce(t('state_' + p)); }
      }
      if (p === 'soon') { announceCountdown(); }
      paint();
    }

    // Each minute of the last hour, and ten seconds; not each second.
    function announceCountdown() {
      var s = untilOpen();
      var mark = s <= 10 ? 0 : s <= 3600 ? Math.ceil(s / 60) : 99;
      if (!isFinite(s) || mark === told) { return; }
      var first = told < 0;
      told = mark;
      if (first || mark === 99) { return; }
      announce(mark === 0 ? t('ten_seconds') : t('opens_in', { time: span(mark * 60) }));
    }

    // Kept, because to write a date takes a cheap phone long.
    function opening() {
      if (!date || date.at !== opensAt() || date.lang !== lang) {
        date = { at: opensAt(), lang: lang, text: t('opens_at', { time: when(opensAt()) }) };
      }
      return date.text;
    }

    painters.push(function () {
      var soon = phase === 'soon';
      var left = soon && isFinite(untilOpen()) ? untilOpen() : 0;
      el('state').setAttribute('data-phase', phase);
      put('state', t('state_' + (phase === 'unknown' && (doc || failed > 1) ? 'blind' : phase || 'unknown')));
      el('countdown').hidden = !left;
      put('countdown-figure', left ? figure(left) : '');
      put('countdown-text', left ? t('opens_in', { time: span(left) }) : '');
      put('opens', soon ? opening() : '');
      put('note', soon ? t('ready') : doc && failed > 2 ? t('old_figures') : '');
      put('submit-note', mayBook() ? '' : t('state_' + phase) + (left ? ' ' + t('opens_in', { time: span(left) }) : ''));
      el('submit').setAttribute('aria-disabled', String(working || !mayBook()));
    });

    painters.push(function () {
      levels.forEach(function (input) {
        var label = input.parentNode;
        var level = levelOf(input.value);
        var full = Boolean(level) && isFull(level);
        var bar = label.querySelector('.bar');
        var stale = full && isStale();
        var text = !level || stale ? '' : full ? t('full') : t('left', { n: level.left });
        var fee = sale.levels.filter(function (l) { return l.id === input.value; })[0];
        input.disabled = full && !stale;
        label.classList.toggle('full', input.disabled);
        write(label.querySelector('.left'), text);
        write(label.querySelector('.fee'), fee ? digits(fee.fee) : '');
        bar.hidden = !level || !(level.cap > 0) || stale;
        if (!bar.hidden) { bar.querySelector('rect').setAttribute('width', String(Math.max(0, Math.min(100, 100 * level.left / level.cap)))); }
      });
    });

    // watch reads status.json while somebody looks; no-store, because an answer out
    // of the browser's own cache tells an old time.
    async function watch() {
      for (;;) {
        var answer = { after: 0 };
        if (!document.hidden) {
          answer = await ask('/status.json', { cache: 'no-store', headers: { 'Accept': 'application/json' } }, 10000);
          if (answer.status === 200 && answer.body && Array.isArray(answer.body.levels)) {
            failed = 0;
            learn(answer.body, answer.got - answer.age);
          } else {
            failed = Math.min(failed + 1, 4);
          }
        }
        await figures.nap(spread(Math.max(4000 * Math.pow(2, failed), answer.after)));
      }
    }

    // The half second is cut short when the opening falls into it.
    function tick() {
      endPause();
      move();
      var ms = phase === 'soon' ? untilOpen() * 1000 : 500;
      setTimeout(tick, Math.max(10, Math.min(500, isFinite(ms) ? ms : 500)));
    }

    // ---- the form ----

    painters.push(function () {
      ['code', 'email', 'level'].forEach(function (field) {
        var slug = errors[field];
        var input = field === 'level' ? el('levels') : el(field);
        put(field + '-error', !slug ? '' : has(texts.en.ui, slug) ? t(slug) : words(slug).title + '. ' + words(slug).message);
        if (slug) { input.setAttribute('aria-invalid', 'true'); } else { input.removeAttribute('aria-invalid'); }
      });
    });

    function focusOn(field) {
      if (field === 'level') { (form.querySelector('input[name=level]:enabled') || el('answer')).focus(); return; }
      el(field).focus();
    }

    // Bangla digits are what some keyboards type; no code has them.
    function plain(text) {
      return text.trim().replace(/[\u09e6-\u09ef]/g, function (d) { return String(d.charCodeAt(0) - 0x9e6); });
    }

    // These checks only help; the server decides.
    function check() {
      var level = chosen();
      var want = { code: plain(el('code').value).toUpperCase(), email: el('email').value.trim(), level: level ? level.value : '' };
      errors = {};
      if (!want.code) { errors.code = 'need_code'; }
      if (!want.email) { errors.email = 'need_email'; } else if (!/^[^@\s]+@[^@\s]+$/.test(want.email)) { errors.email = 'odd_email'; }
      if (!level) { errors.level = 'need_level'; } else if (level.disabled) { errors.level = 'level_full'; }
      return want;
    }

    function firstError() { return ['code', 'email', 'level'].filter(function (f) { return errors[f]; })[0]; }

    function lock(on) {
      el('fields').disabled = on;
      form.setAttribute('aria-busy', String(on));
    }

    // Nothing is sent while a request is under way, or while it is of no use.
    function submit(event) {
      event.preventDefault();
      if (working) { return; }
      if (!mayBook()) { announce(el('submit-note').textContent); return; }
      var want = check();
      if (firstError()) { hush(); focusOn(firstError()); return; }
      recall();
      if (isOf(want) && inPayment()) { leave(resultOf(inPayment())); return; }
      intend(want);
      send(false);
    }

    // The same request again would lead to the payment that is made already.
    function inPayment() { return intent.done ? intent.was : intent.state === 'paying' ? intent.booking : ''; }

    // Who has a seat hears of it whatever the sale does.
    function find() {
      if (working) { return; }
      var want = check();
      delete errors.level;
      if (firstError()) { hush(); focusOn(firstError()); return; }
      candidate(want);
      keep();
      send(true);
    }

    // Only who asked for a seat is taken to the payment of one.
    async function send(asFind) {
      finding = asFind;
      errors = {};
      lock(true);
      var answered = book(el('website').value, asFind);
      el('answer').focus();
      var result = await answered;
      if (result.slug === 'going' && !asFind) { leave(result.body.payment_url); return; }
      lock(false);
      react(result);
    }

    var fieldOf = { invalid_code: 'code', email_mismatch: 'email', invalid_level: 'level', level_full: 'level' };

    function react(result) {
      var slug = result.slug;
      var body = result.body || {};
      if (slug === 'level_full') { amend(result.sent, function (d) { fillUp(d, body.level || intent.want.level); }); }
      if (slug === 'sold_out') { amend(result.sent, function (d) { d.total = { left: 0 }; d.levels.forEach(function (l) { l.left = 0; }); }); }
      if (slug === 'not_open') { amend(result.sent, function (d) { d.open = false; d.opens_at = body.opens_at; }); }
      if (slug === 'invalid_level') { figures.wake(); }
      if (slug === 'duplicate') { seat.wake(); }
      if (has(fieldOf, slug)) { errors[fieldOf[slug]] = slug; }
      paint();
      focusOn(fieldOf[slug] || 'answer');
    }

    function fillUp(d, id) {
      var level = levelOf(id);
      if (level) { level.left = 0; } else { d.levels.push({ id: id, left: 0 }); }
    }

    // ---- coming back to the page ----

    function refill() {
      if (el('code').value || el('email').value || chosen()) { return; }
      el('code').value = intent.want.code;
      el('email').value = intent.want.email;
      levels.forEach(function (input) { if (input.value === intent.want.level) { input.checked = true; } });
    }

    // resume offers what was left unfinished in this tab, and does nothing by itself.
    async function resume() {
      recall();
      if (!intent || intent.done) { return; }
      refill();
      if (intent.sent) { say('interrupted', null, 'check'); tell('interrupted'); return; }
      if (!intent.booking) { return; }
      var token = intent.booking;
      var answer = await lookUp(token);
      if (!working && intent && intent.booking === token) { offer(token, sortView(answer), answer.body || {}); }
    }

    // offer shows how a booking stands, and says it where that is news.
    function offer(token, state, body) {
      var mine = Boolean(intent) && intent.booking === token;
      var before = panel && panel.token === token ? shown() : '';
      var slug = state;
      if (state === 'busy') {
        if (before) { return; }
        slug = 'kept';
      }
      if (state === 'unknown') {
        if (mine) { endIntent(false); }
        if (before) { hush(); }
        return;
      }
      if (state === 'held' || state === 'refused') { slug = !(body.seconds_left > 0) ? 'over' : isWeb(body.payment_url) ? 'duplicate_payable' : state; }
      if (mine && state !== 'busy') { note(state); }
      say(slug, { payment_url: body.payment_url, seconds_left: body.seconds_left, booking_url: token });
      if (slug !== before) { tell(slug); }
    }

    // A booking on show is looked at again as long as it can change.
    async function attend() {
      for (var misses = 0; ;) {
        var at = panel && panel.token;
        if (at && !working && !document.hidden && !/^(paid|released|refund_due|duplicate_paid)$/.test(panel.slug)) {
          var answer = await lookUp(at);
          var state = sortView(answer);
          misses = state === 'busy' ? Math.min(misses + 1, 3) : 0;
          if (!working && panel && panel.token === at) { offer(at, state, answer.body || {}); }
          notBefore = now() + answer.after;
        }
        await seat.nap(spread(Math.max(25000 * Math.pow(2, misses), notBefore - now())));
      }
    }

    form.noValidate = true;
    form.addEventListener('submit', submit);
    form.addEventListener('input', function (event) {
      var field = event.target.name;
      if (has(errors, field)) { delete errors[field]; paint(); }
    });
    el('find').addEventListener('click', function (event) {
      event.preventDefault();
      find();
    });
    el('answer-check').addEventListener('click', function () {
      if (panel && panel.check === 'have_seat') { find(); return; }
      recall();
      if (working || !intent) { return; }
      if (panel && panel.check === 'again' && finding) { send(true); return; }
      intend(intent.want);
      send(false);
    });
    onView(function () {
      figures.wake();
      if (now() >= notBefore) { seat.wake(); }
    });
    window.addEventListener('pageshow', function (event) {
      if (!event.persisted || working) { return; }
      lock(false);
      figures.wake();
      resume();
    });
    el('stand').hidden = false;
    lock(false); // some browsers keep what was disabled over a reload
    tick();
    watch();
    attend();
    resume();
    if (location.hash === '#find') { el('find').focus(); }
  }

  // ---- result page ----

  // sortView names an answer of GET /booking/: a state, unknown, or busy, which
  // is everything that is not our JSON.
  function sortView(answer) {
    var b = answer.body || {};
    if (answer.status === 404 && b.error === 'not_found') { return 'unknown'; }
    return answer.status === 200 && typeof b.state === 'string' && has(texts.en.answers, b.state) ? b.state : 'busy';
  }

  function result() {
    recall();
    var query = new URLSearchParams(location.search);
    var busy = query.get('error') === 'busy';
    var back = wayBack(query);
    var token = query.get('booking') || (busy && !back && intent && intent.booking) || '';
    var view = { state: 'checking', level: '', until: 0, url: '', reason: '', mine: false };
    var failed = 0;
    var asked = false; // once the time is over, at once
    var last = { paid: true, released: true, refund_due: true, unknown: true };
    var looker = sleeper();
    var comer = sleeper();
    var round = 0; // looks since something changed
    var began = now(); // the first of them
    var notBefore = 0; // the next one
    var halted = ''; // why the page does not look by itself any more: long, later
    var next = null; // when the payer's return is repeated; until is 0 when a person must

    function left() { return view.until ? (view.until - now()) / 1000 : 0; }

    function isOver() { return (view.state === 'held' || view.state === 'refused') && left() <= 0; }

    function slug() {
      if (isOpen()) { return 'returning'; }
      if (view.state === 'checking') { return busy || failed > 1 ? 'return_busy' : 'checking'; }
      if (view.state === 'held' && isOver()) { return 'over'; }
      if (view.state !== 'refused') { return view.state; }
      return isOver() ? 'over' : has(texts.en.answers, 'refused_' + view.reason) ? 'refused_' + view.reason : 'refused';
    }

    // The payer has come back and nothing has come of it yet.
    function isOpen() { return Boolean(back) && (view.state === 'checking' || (view.state === 'held' && !isOver())); }

    function isRefused() { return view.state === 'refused' && !isOver(); }

    // Who typed the form in this tab need not type it again.
    function mayRepeat() { return isRefused() && view.mine; }

    function isMine() { return Boolean(intent) && (intent.booking === token || intent.was === token); }

    // Back at a payment that was refused, when a newer one has its seat.
    function movedOn(state) {
      return (state === 'refused' || state === 'released') && Boolean(intent) && Boolean(intent.booking) && intent.booking !== token && intent.was === token;
    }

    function timeText() {
      if (isOpen()) { return !next ? '' : next.until ? t('retry', { time: span((next.until - now()) / 1000), n: next.tries }) : t('stopped_looking'); }
      if (left() > 0) { return t('time_left', { time: span(left()) }); }
      return halted === 'long' ? t('stopped_looking') : halted ? waitText(notBefore) : '';
    }

    painters.push(function () {
      var level = sale.levels.filter(function (l) { return l.id === view.level; })[0] || { name: view.level, fee: '' };
      var paid = view.state === 'paid';
      var mine = view.mine ? intent.want : null;
      var title = words(slug()).title;
      var lost = !mayRepeat() && /^(refused|released|unknown|return_busy)/.test(slug());
      el('result').setAttribute('data-state', view.state);
      el('result').setAttribute('data-slug', slug());
      if (document.title !== title + ' - ' + sale.title) { document.title = title + ' - ' + sale.title; }
      put('sale-name', sale.title);
      put('title', title);
      put('message', words(slug()).message);
      put('time', timeText());
      link('pay', view.state === 'held' && !isOver() && !back ? view.url : '');
      el('again').hidden = !mayRepeat() || working;
      el('look').hidden = !(isOpen() ? next : halted);
      el('elsewhere').hidden = !isRefused() || view.mine;
      el('details').hidden = !view.level;
      el('level').hidden = !view.level;
      put('level-name', level.name);
      el('fee').hidden = !level.fee;
      put('fee-amount', digits(level.fee));
      el('candidate').hidden = !paid || !mine;
      put('candidate-code', paid && mine ? mine.code : '');
      el('mail').hidden = !paid;
      put('mail-address', !paid ? '' : mine ? mine.email : t('mail_registered'));
      el('keep').hidden = !paid;
      put('book-link', !lost ? '' : view.state === 'released' ? t('try_form') : t('to_form'));
      el('find-link').hidden = !lost && slug() !== 'returning';
    });

    // A change is said, and the reader is brought to it when what they stood on is gone.
    function show(state, body) {
      var before = slug();
      view = {
        state: state, level: body.level || view.level, url: body.payment_url, reason: body.reason,
        until: (state === 'held' || state === 'refused') && body.seconds_left > 0 ? now() + body.seconds_left * 1000 : 0,
        mine: isMine()
      };
      if (view.mine && intent.booking === token && state !== 'unknown') { note(state); }
      if (state === 'paid' && !working) { panel = null; }
      paint();
      if (slug() !== before) { tell(slug()); }
      if (before !== 'checking' && slug() !== before && (!document.activeElement || document.activeElement === document.body || document.activeElement.hidden)) {
        el('title').focus();
      }
    }

    function anew() {
      round = 0;
      began = now();
    }

    // follow asks until nothing can change any more: soon after a change, then more and
    // more seldom, and after half an hour without one only when a person does.
    async function follow() {
      for (;;) {
        var answer = { after: 0 };
        var before = slug();
        var stood = view.state;
        if (!working) {
          answer = await lookUp(token);
          var state = sortView(answer);
          if (movedOn(state)) {
            token = intent.booking;
            history.replaceState(null, '', resultOf(token));
            anew();
            continue;
          }
          failed = state !== 'busy' ? 0 : isBlocked(answer) || answer.after > 10000 ? 2 : failed + 1;
          if (!failed && !working) { show(state, answer.body); }
          if (has(last, view.state)) { return; }
          if (stood !== view.state) { anew(); } else if (slug() !== before) { tell(slug()); }
          notBefore = now() + answer.after;
        }
        halted = answer.after > longest ? 'later' : now() - began > 1800000 ? 'long' : '';
        if (halted === 'long') { announce(t('stopped_looking')); }
        paint();
        await looker.nap(halted ? 0 : Math.max(pace(answer), spread(answer.after)));
        if (halted) { anew(); }
        halted = '';
      }
    }

    // An edge that refuses is asked seldom at once.
    function pace(answer) {
      var ms = isBlocked(answer) ? 60000 : Math.min(2000 * Math.pow(1.5, round++), 60000);
      return spread(Math.max(ms, document.hidden ? 20000 : 0) / 1.25);
    }

    // ---- a payer's return that was not heard ----

    // The three parameters of the return: to go the same way again repeats it.
    function wayBack(query) {
      var way = ['paymentID', 'status', 'signature'].map(function (name) {
        return query.get(name) ? name + '=' + encodeURIComponent(query.get(name)) : '';
      });
      return way.every(Boolean) ? '/payment/callback?' + way.join('&') : '';
    }

    // comeBack repeats the return by itself for ten minutes, over reloads too, and then
    // when a person says so; always so where nothing is kept over a reload.
    async function comeBack() {
      var count;
      try { count = JSON.parse(tab.get('holdfast-return')); } catch (e) { count = null; }
      if (!count || count.way !== back || !(Date.now() >= count.since)) { count = { way: back, since: Date.now(), tries: 0 }; }
      tab.set('holdfast-return', JSON.stringify(count));
      for (var least = 0; ;) {
        var ms = Math.min(3000 * Math.pow(1.5, count.tries), 30000);
        ms = Math.max(ms + Math.random() * ms, least);
        if (!tab.lasts('holdfast-return') || Date.now() - count.since > 600000) { ms = 0; }
        next = { until: ms && now() + ms, tries: count.tries + 1 };
        if (!ms) { announce(t('stopped_looking')); }
        paint();
        await comer.nap(ms);
        next = null;
        paint();
        if (has(last, view.state) || view.state === 'refused') { back = ''; tab.remove('holdfast-return'); return; }
        if (!isOpen()) { continue; }
        count.tries++;
        tab.set('holdfast-return', JSON.stringify(count));
        var answer = await ask(back, { cache: 'no-store' }, 15000);
        least = isBlocked(answer) ? 60000 : spread(answer.after);
        var led = answer.status === 200 ? new URL(answer.url) : null;
        var to = new URLSearchParams(led && led.pathname === location.pathname ? led.search : '');
        if (to.get('error') === 'unknown') { show('unknown', {}); }
        if (to.get('booking') && !(token && wayBack(to))) {
          tab.remove('holdfast-return');
          location.replace(answer.url);
          return;
        }
      }
    }

    // When the time is over the server is asked at once.
    function tick() {
      endPause();
      if (isOver() !== asked) {
        asked = isOver();
        if (asked) { tell(slug()); look(); }
      }
      paint();
      setTimeout(tick, 500);
    }

    // Not before the server wants to be asked, but for a person's own press.
    function look() {
      if (now() < notBefore) { return; }
      anew();
      looker.wake();
    }

    async function again() {
      recall();
      if (working || !isMine()) { return; }
      if (!intent.sent || !intent.key) {
        intent.key = newKey();
        intent.want.level = view.level || intent.want.level;
      }
      var answered = book('', false);
      el('answer').focus();
      var r = await answered;
      if (r.slug === 'going' || r.slug === 'duplicate_payable') {
        leave(r.body.payment_url);
        return;
      }
      el('answer').focus();
      look();
    }

    function resume() {
      if (intent && intent.sent && isMine()) {
        say('interrupted', null, 'check');
        tell('interrupted');
      }
    }

    el('again').addEventListener('click', again);
    el('look').addEventListener('click', function () {
      looker.wake();
      comer.wake();
    });
    el('answer-check').addEventListener('click', function () {
      if (panel && panel.check === 'have_seat') { location.assign('/#find'); return; }
      again();
    });
    window.addEventListener('pageshow', function (event) {
      if (!event.persisted || working) { return; }
      recall();
      look();
    });
    onView(look);
    if (token) { follow(); } else { show(busy ? 'checking' : 'unknown', {}); }
    if (back) {
      tell(slug());
      comeBack();
    }
    resume();
    tick();
  }

  speak(firstLanguage());
  if (el('book')) { booking(); }
  if (el('result')) { result(); }
}());
