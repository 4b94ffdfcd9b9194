// The ids that are the page's interface.
//
// Booking page: main#book, form, code, email, level (radios by name, in levels),
// submit (aria-disabled, with submit-note, while it is of no use), find (shown
// instead: ask for a booking made before), code-error, email-error, level-error;
// state (where the sale stands; data-phase: unknown, soon, open, sold_out,
// closed), countdown (countdown-figure, countdown-text), opens (date and time),
// note. Result page: main#result (data-state: as the server says, or checking,
// unknown; data-slug: the words), title, message, level, time, pay, again
// (button), book-link, details (level, fee, candidate, mail), keep.
// Both: lang, live (the one live region), and the panel: answer (data-slug),
// answer-title, answer-message, answer-time, answer-pay, answer-booking,
// answer-check (button: send the same again), answer-id (request id), wait,
// wait-text, stop.
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

  // A browser's store, or memory where it is forbidden.
  function store(kind) {
    var memory = {};
    return {
      get: function (name) {
        try { return window[kind].getItem(name) || memory[name] || null; } catch (e) { return memory[name] || null; }
      },
      set: function (name, value) {
        memory[name] = value;
        try { window[kind].setItem(name, value); } catch (e) { return; }
      }
    };
  }

  var tab = store('sessionStorage');
  var browser = store('localStorage');

  // The one intent of this tab: want (code, email, level), id (want, normalised),
  // key (Idempotency-Key), find (only asks for a booking made before), sent (a
  // request had no clear answer yet), booking (its token), was (the token of the
  // booking that ended, or that a new payment has taken the place of), done (paid).
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

  function idOf(want) { return want.code.toUpperCase() + ' ' + want.email.toLowerCase() + ' ' + want.level; }

  // The same wish keeps its key, so that a repeat, even after a reload, is the
  // same request and not a second one.
  function intend(want, find) {
    recall();
    if (!intent || intent.id !== idOf(want) || !intent.key) {
      intent = { want: want, id: idOf(want), key: newKey(), sent: false, booking: '', was: '', done: false };
    }
    intent.find = find;
    keep();
  }

  // What was typed stays, for the details of a paid seat or for another try.
  function endIntent(paid) {
    if (!intent) { return; }
    intent.was = intent.booking || intent.was;
    intent.key = '';
    intent.booking = '';
    intent.sent = false;
    intent.done = paid;
    keep();
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

  // The one thing that is read aloud unasked; emptied first, so that the same may
  // be said twice.
  function announce(text) {
    el('live').textContent = '';
    setTimeout(function () { el('live').textContent = text; }, 50);
  }

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
    paint();
  }

  el('lang').addEventListener('click', function () {
    var l = el('lang').lang;
    browser.set('holdfast-lang', l);
    speak(l);
  });

  // ---- asking ----

  async function read(url, options) {
    var answer = { status: 0, after: 0, body: null, lost: false, sent: now(), got: 0, date: NaN, slack: 1000 };
    var res = await fetch(url, options);
    var age = Number(res.headers.get('Age'));
    var wait = Number(res.headers.get('Retry-After'));
    answer.got = now();
    answer.status = res.status;
    answer.date = Date.parse(res.headers.get('Date')) + (age > 0 ? age * 1000 : 0);
    answer.slack = age > 0 ? 2000 : 1000;
    answer.after = wait > 0 ? Math.min(wait, 120) * 1000 : 0;
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
    return answer;
  }

  function lookUp(token) {
    return ask('/booking/' + encodeURIComponent(token), { cache: 'no-store', headers: { 'Accept': 'application/json' } }, 10000);
  }

  // nap ends early by wake, and when the tab comes to the front.
  var wake = function () { return; };
  function nap(ms) {
    return new Promise(function (done) { wake = done; setTimeout(done, ms); });
  }
  document.addEventListener('visibilitychange', function () { if (!document.hidden) { wake(); } });

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
      pay: b.payment_url,
      until: b.seconds_left > 0 ? now() + b.seconds_left * 1000 : 0,
      booking: resultOf(tokenOf(b.booking_url)),
      id: slug === 'internal' || /^(body_too|unsupp|method|not_found|invalid_request)/.test(slug) ? b.request_id : '',
      check: check || ''
    };
    paint();
  }

  function hush() { panel = null; paint(); }

  painters.push(function () {
    el('answer').hidden = !panel;
    if (!panel) { return; }
    var over = panel.until && now() >= panel.until;
    var slug = over ? 'over' : panel.slug;
    el('answer').setAttribute('data-slug', slug);
    put('answer-title', words(slug).title);
    put('answer-message', words(slug).message);
    put('answer-time', panel.until && !over ? t('time_left', { time: span((panel.until - now()) / 1000) }) : '');
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
  function pause(ms, tries, lost) {
    return new Promise(function (done) {
      var offline = lost && navigator.onLine === false;
      pausing = {
        until: now() + (offline ? 30000 : ms), tries: tries, lost: lost, offline: offline,
        end: function (goOn) { pausing = null; paint(); done(goOn); }
      };
      paint();
    });
  }

  function endPause() { if (pausing && now() >= pausing.until) { pausing.end(true); } }

  window.addEventListener('online', function () { if (pausing && pausing.lost) { pausing.end(true); } });
  el('stop').addEventListener('click', function () { if (pausing) { pausing.end(false); } });

  // ---- sending ----

  var patience = 240000; // then a person decides
  var retried = { try_again: true, payment_unavailable: true, duplicate_working: true, offline: true, blocked: true, busy: true };
  var unclear = { try_again: true, offline: true, busy: true, interrupted: true, internal: true };

  // sort names an answer. What is not our JSON (the edge, a proxy, no network)
  // decides nothing, whatever its status.
  function sort(answer) {
    var b = answer.body || {};
    if (answer.status === 202 && isWeb(b.payment_url)) { return 'going'; }
    if (answer.lost) { return 'offline'; }
    if (answer.status < 400 || typeof b.error !== 'string') {
      return answer.status === 403 || answer.status === 429 ? 'blocked' : 'busy';
    }
    if (b.error === 'closed') { return b.reason === 'sold_out' ? 'sold_out' : 'not_open'; }
    if (b.error === 'duplicate') {
      return b.paid ? 'duplicate_paid' : isWeb(b.payment_url) ? 'duplicate_payable' : answer.after ? 'duplicate_working' : 'duplicate';
    }
    return has(texts.en.answers, b.error) ? b.error : 'busy';
  }

  // A firewall that is asked more often only blocks for longer.
  function delay(slug, tries, after) {
    var slow = slug === 'blocked';
    var ms = (slow ? 15000 : 1500) * Math.pow(1.5, tries - 1);
    return spread(Math.max(Math.min(ms, slow ? 60000 : 20000), after));
  }

  function post(trap) {
    return ask('/book', {
      method: 'POST',
      cache: 'no-store',
      headers: { 'Content-Type': 'application/json', 'Accept': 'application/json', 'Idempotency-Key': intent.key },
      body: JSON.stringify({ code: intent.want.code, email: intent.want.email, level: intent.want.level, website: trap })
    }, 20000);
  }

  // What an answer means for the intent.
  function remember(slug, body) {
    intent.sent = has(unclear, slug);
    if (slug === 'going' || slug === 'duplicate_payable') {
      var token = tokenOf(body.booking_url);
      if (intent.booking !== token) { intent.was = intent.booking; }
      intent.booking = token;
    }
    if (slug === 'idempotency_mismatch') { intent.key = newKey(); }
    keep();
  }

  // book sends the intent until an answer decides, the person stops it or patience
  // ends, and gives that answer back, which is then on show.
  async function book(trap) {
    var began = now();
    var slug = 'sending';
    var answer;
    working = true;
    say(slug);
    announce(words(slug).title);
    for (var tries = 1; ; tries++) {
      intent.sent = true;
      keep();
      answer = await post(trap);
      slug = sort(answer);
      if (!has(retried, slug)) { break; }
      var ms = delay(slug, tries, answer.after);
      if (slug === 'blocked') { slug = 'busy'; }
      if (panel.slug !== slug) { announce(words(slug).title); }
      say(slug);
      if (now() - began > patience || !await pause(ms, tries + 1, answer.lost)) { slug = stopped(slug); break; }
      if (answer.lost) { began = now(); }
    }
    working = false;
    remember(slug, answer.body);
    say(slug, answer.body, has(unclear, slug) || has(retried, slug) ? (slug === 'interrupted' ? 'check' : 'again') : '');
    if (/^duplicate/.test(slug) && !panel.booking) { panel.booking = resultOf(intent.booking); }
    if (slug === 'duplicate_paid') { endIntent(true); }
    paint();
    return { slug: slug, body: answer.body };
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

  // A request given up without an answer may have gone through.
  function stopped(slug) { return has(unclear, slug) ? 'interrupted' : slug; }

  // ---- booking page ----

  function booking() {
    var form = el('form');
    var doc = null; // status.json, and what an answer has told since
    var floor = 0; // the least version that is news
    var failed = 0;
    var phase = '';
    var errors = {}; // by field: the slug of an answer, or a text of the page
    var told = -1; // what the countdown has said last
    var date = null; // the opening, as it was written last
    var levels = form.querySelectorAll('input[name=level]');

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

    function phaseNow() {
      if (!doc) { return 'unknown'; }
      if (!isOpen()) { return opensAt() > 0 ? 'soon' : 'closed'; }
      return soldOut() ? 'sold_out' : 'open';
    }

    function mayBook() { return phase === 'open' || phase === 'unknown'; }

    function levelOf(id) { return doc ? doc.levels.filter(function (l) { return l.id === id; })[0] : undefined; }

    function nameOf(id) {
      return sale.levels.filter(function (l) { return l.id === id; }).map(function (l) { return l.name; })[0] || id;
    }

    // A cache may be behind: an older document is no news.
    function learn(s) {
      if (!(s.version >= floor)) { return; }
      var before = doc;
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

    // What an answer of the server says is newer than every document seen.
    function amend(change) {
      if (!doc) { doc = { version: -1, open: true, levels: [] }; }
      floor = doc.version + 1;
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
      put('state', t('state_' + (phase === 'unknown' && failed > 1 ? 'blind' : phase || 'unknown')));
      el('countdown').hidden = !left;
      put('countdown-figure', left ? figure(left) : '');
      put('countdown-text', left ? t('opens_in', { time: span(left) }) : '');
      put('opens', soon ? opening() : '');
      put('note', soon ? t('ready') : doc && failed > 2 ? t('old_figures') : '');
      put('submit-note', mayBook() ? '' : t('state_' + phase) + (left ? ' ' + t('opens_in', { time: span(left) }) : ''));
      el('submit').setAttribute('aria-disabled', String(working || !mayBook()));
      el('find').hidden = phase !== 'sold_out' && phase !== 'closed';
    });

    painters.push(function () {
      levels.forEach(function (input) {
        var label = input.parentNode;
        var level = levelOf(input.value);
        var full = Boolean(level) && isFull(level);
        var bar = label.querySelector('.bar');
        var text = !level ? '' : full ? t('full') : t('left', { n: level.left });
        var fee = sale.levels.filter(function (l) { return l.id === input.value; })[0];
        input.disabled = full;
        label.classList.toggle('full', full);
        write(label.querySelector('.left'), text);
        write(label.querySelector('.fee'), fee ? digits(fee.fee) : '');
        bar.hidden = !level || !(level.cap > 0);
        if (!bar.hidden) { bar.querySelector('rect').setAttribute('width', String(Math.max(0, Math.min(100, 100 * level.left / level.cap)))); }
      });
    });

    // watch reads status.json while somebody looks; no-store, because an answer out
    // of the browser's own cache tells an old time.
    async function watch() {
      for (;;) {
        if (!document.hidden) {
          var answer = await ask('/status.json', { cache: 'no-store', headers: { 'Accept': 'application/json' } }, 10000);
          if (answer.status === 200 && answer.body && Array.isArray(answer.body.levels)) {
            failed = 0;
            learnTime(answer);
            learn(answer.body);
          } else {
            failed = Math.min(failed + 1, 4);
          }
        }
        await nap(spread(4000 * Math.pow(2, failed)));
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
      intend(want, false);
      send();
    }

    // Who has a seat hears of it even now, and gets the way to the payment back.
    function find() {
      if (working) { return; }
      var want = check();
      delete errors.level;
      if (firstError()) { hush(); focusOn(firstError()); return; }
      recall();
      if (!want.level) { want.level = intent ? intent.want.level : levels[0].value; }
      intend(want, true);
      send();
    }

    // Only who asked for a seat is taken to the payment of one.
    async function send() {
      var toPayment = !intent.find;
      errors = {};
      lock(true);
      var answered = book(el('website').value);
      el('answer').focus();
      var result = await answered;
      if (result.slug === 'going' && toPayment) { leave(result.body.payment_url); return; }
      lock(false);
      react(result, toPayment);
    }

    var fieldOf = { invalid_code: 'code', email_mismatch: 'email', invalid_level: 'level', level_full: 'level' };

    function react(result, toPayment) {
      var slug = result.slug;
      var body = result.body || {};
      if (slug === 'level_full') { amend(function (d) { fillUp(d, body.level || intent.want.level); }); }
      if (slug === 'sold_out') { amend(function (d) { d.total = { left: 0 }; d.levels.forEach(function (l) { l.left = 0; }); }); }
      if (slug === 'not_open') { amend(function (d) { d.open = false; d.opens_at = body.opens_at; }); }
      if (slug === 'invalid_level') { wake(); }
      if (slug === 'going') { say('duplicate_payable', body); }
      if (!toPayment && /^(level_full|sold_out|not_open|invalid_level)$/.test(slug)) { say('no_seat'); slug = ''; }
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
      if (intent.sent) { say('interrupted', null, 'check'); announce(words('interrupted').title); return; }
      if (!intent.booking) { return; }
      var token = intent.booking;
      var answer = await lookUp(token);
      if (!working && intent && intent.booking === token) { offer(token, sortView(answer), answer.body || {}); }
    }

    function offer(token, state, body) {
      var slug = state === 'busy' ? 'kept' : state;
      if (state === 'held' || state === 'refused') { slug = !(body.seconds_left > 0) ? 'over' : isWeb(body.payment_url) ? 'duplicate_payable' : state; }
      if (state === 'unknown') { endIntent(false); return; }
      if (state === 'refused') { intent.key = ''; keep(); }
      say(slug, { payment_url: body.payment_url, seconds_left: body.seconds_left, booking_url: token });
      if (state === 'paid' || state === 'released' || state === 'refund_due') { endIntent(state === 'paid'); }
      announce(words(slug).title);
    }

    form.noValidate = true;
    form.addEventListener('submit', submit);
    form.addEventListener('input', function (event) {
      var field = event.target.name;
      if (has(errors, field)) { delete errors[field]; paint(); }
    });
    el('find').addEventListener('click', find);
    el('answer-check').addEventListener('click', function () {
      recall();
      if (working || !intent) { return; }
      intend(intent.want, intent.find);
      send();
    });
    window.addEventListener('pageshow', function (event) {
      if (!event.persisted || working) { return; }
      lock(false);
      wake();
      resume();
    });
    el('stand').hidden = false;
    lock(false); // some browsers keep what was disabled over a reload
    tick();
    watch();
    resume();
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
    var token = query.get('booking') || (busy && intent && intent.booking) || '';
    var view = { state: 'checking', level: '', until: 0, url: '', reason: '', mine: false };
    var failed = 0;
    var asked = false; // once the time is over, at once
    var last = { paid: true, released: true, refund_due: true, unknown: true };

    function left() { return view.until ? (view.until - now()) / 1000 : 0; }

    function isOver() { return (view.state === 'held' || view.state === 'refused') && left() <= 0; }

    function slug() {
      if (view.state === 'checking') { return busy || failed > 1 ? 'return_busy' : 'checking'; }
      if (view.state === 'held' && isOver()) { return 'over'; }
      if (view.state !== 'refused') { return view.state; }
      return isOver() ? 'over' : has(texts.en.answers, 'refused_' + view.reason) ? 'refused_' + view.reason : 'refused';
    }

    // Who typed the form in this tab need not type it again.
    function mayRepeat() { return view.state === 'refused' && !isOver() && view.mine; }

    function isOurs() { return Boolean(intent) && (intent.booking === token || intent.was === token); }

    // Back at a payment that was refused, when a newer one has its seat.
    function movedOn(state) {
      return (state === 'refused' || state === 'released') && Boolean(intent) && Boolean(intent.booking) && intent.was === token;
    }

    painters.push(function () {
      var level = sale.levels.filter(function (l) { return l.id === view.level; })[0] || { name: view.level, fee: '' };
      var paid = view.state === 'paid';
      var mine = view.mine ? intent.want : null;
      var title = words(slug()).title;
      el('result').setAttribute('data-state', view.state);
      el('result').setAttribute('data-slug', slug());
      if (document.title !== title + ' - ' + sale.title) { document.title = title + ' - ' + sale.title; }
      put('sale-name', sale.title);
      put('title', title);
      put('message', words(slug()).message);
      put('time', left() > 0 ? t('time_left', { time: span(left()) }) : '');
      link('pay', view.state === 'held' && !isOver() ? view.url : '');
      el('again').hidden = !mayRepeat() || working;
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
      el('book-link').hidden = mayRepeat() || !/^(refused|released|unknown|return_busy)/.test(slug());
    });

    // A change is said, and the reader is brought to it when what they stood on is gone.
    function show(state, body) {
      var before = slug();
      view = {
        state: state, level: body.level || view.level, url: body.payment_url, reason: body.reason,
        until: (state === 'held' || state === 'refused') && body.seconds_left > 0 ? now() + body.seconds_left * 1000 : 0,
        mine: isOurs()
      };
      if (view.mine && intent.booking === token) {
        if (has(last, state) && state !== 'unknown') { endIntent(state === 'paid'); }
        if (state === 'refused' && !intent.sent) { intent.key = ''; keep(); }
      }
      paint();
      if (slug() !== before) { announce(words(slug()).title); }
      if (before !== 'checking' && slug() !== before && (!document.activeElement || document.activeElement === document.body || document.activeElement.hidden)) {
        el('title').focus();
      }
    }

    // follow asks until nothing can change any more: soon while a payment is being
    // checked, seldom while it is the person's turn.
    async function follow() {
      for (var tries = 0; ; tries++) {
        var before = slug();
        var answer = { after: 0 };
        if (!working) {
          answer = await lookUp(token);
          var state = sortView(answer);
          if (movedOn(state)) {
            token = intent.booking;
            history.replaceState(null, '', resultOf(token));
            continue;
          }
          failed = state === 'busy' ? failed + 1 : 0;
          if (!failed && !working) { show(state, answer.body); }
          if (has(last, view.state)) { return; }
          if (before !== slug()) { tries = 0; }
        }
        await nap(spread(Math.max(pace(tries), answer.after)));
      }
    }

    function pace(tries) {
      var turn = (view.state === 'held' || view.state === 'refused') && !isOver();
      var ms = turn ? 8000 : Math.min(1500 * Math.pow(1.4, tries), 8000);
      return document.hidden ? Math.max(ms, 20000) : ms;
    }

    // When the time is over the server is asked at once.
    function tick() {
      endPause();
      if (isOver() !== asked) {
        asked = isOver();
        if (asked) { announce(words(slug()).title); wake(); }
      }
      paint();
      setTimeout(tick, 500);
    }

    // A refused payment is over, and its key with it; a repeat of the request for a
    // new one keeps its own.
    async function again() {
      recall();
      if (working || !isOurs()) { return; }
      if (!intent.sent || !intent.key) { intent.key = newKey(); }
      if (view.level) { intent.want.level = view.level; }
      intent.id = idOf(intent.want);
      var answered = book('');
      el('answer').focus();
      var r = await answered;
      if (r.slug === 'going' || r.slug === 'duplicate_payable') {
        leave(r.body.payment_url);
        return;
      }
      el('answer').focus();
      wake();
    }

    el('again').addEventListener('click', again);
    el('answer-check').addEventListener('click', again);
    window.addEventListener('pageshow', function (event) {
      if (!event.persisted || working) { return; }
      recall();
      wake();
    });
    if (token) { follow(); } else { show(busy ? 'checking' : 'unknown', {}); }
    tick();
  }

  speak(firstLanguage());
  if (el('book')) { booking(); }
  if (el('result')) { result(); }
}());
