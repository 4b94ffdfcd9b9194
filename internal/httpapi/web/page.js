(function () {
  'use strict';

  var texts = JSON.parse(document.getElementById('texts').textContent);

  function el(id) { return document.getElementById(id); }

  // A pause is stretched by chance: the same one for everyone only moves the spike.
  function spread(ms) { return ms * (1 + Math.random() / 2); }

  function count(n, word) { return n + ' ' + word + (n === 1 ? '' : 's'); }

  function span(seconds) {
    var s = Math.max(0, Math.round(seconds));
    if (s < 60) { return count(s, 'second'); }
    if (s < 3600) { return count(Math.floor(s / 60), 'minute') + (s % 60 ? ' ' + count(s % 60, 'second') : ''); }
    if (s < 172800) { return count(Math.floor(s / 3600), 'hour') + ' ' + count(Math.floor(s % 3600 / 60), 'minute'); }
    return count(Math.floor(s / 86400), 'day');
  }

  function isWeb(url) { return typeof url === 'string' && /^https?:[/][/]/i.test(url); }

  function link(a, url) {
    a.hidden = !isWeb(url);
    if (a.hidden) { a.removeAttribute('href'); } else { a.href = url; }
  }

  // What has not changed is not said aloud again.
  function replace(where, text) {
    if (where.textContent !== text) { where.textContent = text; }
  }

  // ask never throws. body is null unless the answer is a JSON object; status
  // is 0 when there was no answer.
  async function ask(url, options, timeout) {
    var abort = window.AbortController ? new AbortController() : null;
    var timer = abort ? setTimeout(function () { abort.abort(); }, timeout) : 0;
    var answer = { status: 0, retryAfter: 0, body: null };
    if (abort) { options.signal = abort.signal; }
    try {
      var res = await fetch(url, options);
      var wait = Number(res.headers.get('Retry-After'));
      var body = await res.json().catch(function () { return null; });
      answer.status = res.status;
      answer.retryAfter = wait > 0 ? Math.min(wait, 120) : 0;
      if (body && typeof body === 'object') { answer.body = body; }
    } catch (e) {
      answer.status = 0;
    }
    clearTimeout(timer);
    return answer;
  }

  // nap ends early when the tab comes to the front.
  var wake = null;
  function nap(ms) {
    return new Promise(function (done) { wake = done; setTimeout(done, ms); });
  }
  document.addEventListener('visibilitychange', function () {
    if (!document.hidden && wake) { wake(); }
  });

  // ---- booking ----

  function booking() {
    var form = document.querySelector('form');
    var version = -1;
    var opensAt = 0;
    var waiting = null; // ends the pause before the next try
    var working = false;

    // sessionStorage, or memory where it is forbidden.
    var memory = {};
    function recall(name) {
      try { return sessionStorage.getItem(name) || memory[name]; } catch (e) { return memory[name]; }
    }
    function keep(name, value) {
      memory[name] = value;
      try { sessionStorage.setItem(name, value); } catch (e) { return; }
    }

    // One key for each intent, so that a repeat, even after a reload, is the
    // same request and not a second one.
    function keyName(want) { return 'holdfast ' + want.code.toUpperCase() + ' ' + want.email.toLowerCase() + ' ' + want.level; }
    function newKey() {
      var bytes = crypto.getRandomValues(new Uint8Array(16));
      return Array.prototype.map.call(bytes, function (b) { return (b + 256).toString(16).slice(1); }).join('');
    }
    function keyOf(want) {
      var key = recall(keyName(want));
      if (!key) { keep(keyName(want), key = newKey()); }
      return key;
    }

    // sort turns an answer into what to say and whether to go on trying. What
    // is not our JSON (the edge, a proxy, no network) counts as busy.
    function sort(answer) {
      var b = answer.body || {};
      if (answer.status === 202 && isWeb(b.payment_url)) { return { go: b.payment_url, body: b }; }
      var slug = typeof b.error === 'string' ? b.error : 'try_again';
      if (slug === 'closed') { slug = b.reason === 'sold_out' ? 'sold_out' : 'not_open'; }
      if (slug === 'duplicate') {
        if (b.paid) { slug = 'duplicate_paid'; }
        else if (isWeb(b.payment_url)) { slug = 'duplicate_payable'; }
        else if (answer.retryAfter) { slug = 'duplicate_working'; }
      }
      return {
        slug: slug,
        body: b,
        after: answer.retryAfter * 1000,
        again: slug === 'try_again' || slug === 'payment_unavailable' || slug === 'duplicate_working'
      };
    }

    // The booking's address answers programs; people read the page about it.
    function resultOf(booking) {
      return booking && location.origin + '/result?booking=' + booking.slice(booking.lastIndexOf('/') + 1);
    }

    function say(text, body) {
      el('answer-title').textContent = text.title;
      el('answer-message').textContent = text.message;
      var left = body && body.seconds_left;
      el('answer-time').hidden = !(left > 0);
      el('answer-time').textContent = left > 0 ? 'You have ' + span(left) + ' to pay.' : '';
      link(el('answer-pay'), body && body.payment_url);
      link(el('answer-booking'), body && resultOf(body.booking_url));
      el('answer').hidden = false;
    }

    var fieldOf = { invalid_code: 'code', email_mismatch: 'email' };
    function mark(slug) {
      ['code', 'email'].forEach(function (id) {
        if (fieldOf[slug] === id) { el(id).setAttribute('aria-invalid', 'true'); } else { el(id).removeAttribute('aria-invalid'); }
      });
    }

    function lock(on) {
      working = on;
      el('fields').disabled = on;
      if (!on) { el('wait').hidden = true; }
    }

    // pause counts down before the eyes of the person; false when they stop it.
    function pause(ms, tries) {
      return new Promise(function (done) {
        var end = Date.now() + ms;
        var timer = setInterval(tick, 500);
        function finish(goOn) { clearInterval(timer); waiting = null; el('wait').hidden = true; done(goOn); }
        function tick() {
          if (Date.now() >= end) { finish(true); return; }
          el('wait-text').textContent = 'Trying again in ' + span(Math.ceil((end - Date.now()) / 1000)) + ' (try ' + (tries + 1) + ').';
        }
        waiting = finish;
        el('wait').hidden = false;
        tick();
      });
    }

    async function book() {
      var level = form.querySelector('input[name=level]:checked');
      if (!level || level.disabled) { mark(''); say(texts[level ? 'level_full' : 'invalid_request']); return; }
      var want = { code: el('code').value.trim(), email: el('email').value.trim(), level: level.value, website: el('website').value };
      mark('');
      lock(true);
      say({ title: 'Booking your seat', message: 'One moment, please.' });
      for (var tries = 1; ; tries++) {
        var result = sort(await ask('/book', {
          method: 'POST',
          cache: 'no-store',
          headers: { 'Content-Type': 'application/json', 'Accept': 'application/json', 'Idempotency-Key': keyOf(want) },
          body: JSON.stringify(want)
        }, 20000));
        if (result.go) {
          say({ title: 'Your seat is held', message: 'Taking you to the payment.' }, result.body);
          location.assign(result.go);
          return; // locked until the page is left, or shown again
        }
        // A key that is used up must not meet the next try.
        if (result.slug === 'idempotency_mismatch') { keep(keyName(want), newKey()); }
        say(texts[result.slug] || texts.internal, result.body);
        if (result.slug === 'not_open') { opening(Date.parse(result.body.opens_at), el('answer-message')); }
        if (!result.again || tries >= 40) { break; }
        var ms = Math.max(Math.min(2000 * Math.pow(1.4, tries - 1), 20000), result.after);
        if (!await pause(spread(ms), tries)) { break; }
      }
      lock(false);
      mark(result.slug);
      el(fieldOf[result.slug] || 'answer').focus();
    }

    function opening(at, where) {
      if (!(at > Date.now())) { return; }
      replace(where, 'Booking opens on ' + new Date(at).toLocaleString('en-GB', {
        weekday: 'long', day: 'numeric', month: 'long', hour: '2-digit', minute: '2-digit'
      }) + ' by your clock.');
    }

    function radio(level) {
      var found = null;
      form.querySelectorAll('input[name=level]').forEach(function (r) { if (r.value === level.id) { found = r; } });
      if (!found) {
        var fresh = document.importNode(el('level').content, true);
        found = fresh.querySelector('input');
        found.value = level.id;
        fresh.querySelector('.name').textContent = level.name || level.id;
        el('levels').appendChild(fresh);
      }
      return found;
    }

    function show(s) {
      if (!(s.version >= version) || !Array.isArray(s.levels)) { return; } // a cache may be behind
      version = s.version;
      var none = s.levels.length > 0;
      s.levels.forEach(function (level) {
        var full = !(level.left > 0); // whatever level.full says
        var input = radio(level);
        none = none && full;
        input.disabled = full;
        input.parentNode.classList.toggle('full', full);
        input.parentNode.querySelector('.left').textContent = full ? 'full' : level.left + ' left';
      });
      if (s.total && !(s.total.left > 0)) { none = true; }
      opensAt = !s.open && s.opens_at ? Date.parse(s.opens_at) : 0;
      var state = el('state');
      var text = s.open ? (none ? texts.sold_out.title + '. ' + texts.sold_out.message : 'Booking is open.')
        : s.reason === 'sold_out' ? texts.sold_out.title + '.' : texts.not_open.title + '.';
      if (opensAt > Date.now()) { opening(opensAt, state); }
      else { replace(state, text); }
    }

    async function watch() {
      var failed = 0;
      for (;;) {
        if (!document.hidden) {
          var answer = await ask('/status.json', { headers: { 'Accept': 'application/json' } }, 10000);
          failed = answer.status === 200 && answer.body ? 0 : Math.min(failed + 1, 4);
          if (!failed) { show(answer.body); }
        }
        var ms = spread(5000 * Math.pow(2, failed));
        if (opensAt > Date.now()) { ms = Math.min(ms, opensAt - Date.now() + spread(1000)); }
        await nap(ms);
      }
    }

    form.addEventListener('submit', function (event) {
      event.preventDefault();
      if (!working) { book(); }
    });
    el('stop').addEventListener('click', function () { if (waiting) { waiting(false); } });
    // Back from the payment, with the page as it was left.
    window.addEventListener('pageshow', function (event) {
      if (event.persisted) { lock(false); el('answer').hidden = true; }
    });
    lock(false); // some browsers keep what was disabled over a reload
    watch();
  }

  // ---- result ----

  function result(page) {
    var query = new URLSearchParams(location.search);
    var token = page.getAttribute('data-booking') || query.get('booking');
    var last = page.getAttribute('data-state');
    var seconds = Number(page.getAttribute('data-seconds'));
    var end = seconds > 0 ? Date.now() + seconds * 1000 : 0;
    var final = { paid: true, released: true, refund_due: true };

    function show(b) {
      last = b.state;
      document.title = texts[b.state].title;
      replace(el('title'), texts[b.state].title);
      replace(el('message'), texts[b.state].message);
      if (b.level) { el('level-name').textContent = b.level; }
      el('level').hidden = !b.level;
      link(el('pay'), b.payment_url);
      el('again').hidden = b.state !== 'refused' && b.state !== 'released' && b.state !== 'unknown';
      end = (b.state === 'held' || b.state === 'refused') && b.seconds_left > 0 ? Date.now() + b.seconds_left * 1000 : 0;
      tick();
    }

    function tick() {
      el('time').hidden = !end;
      el('time').textContent = 'You have ' + span((end - Date.now()) / 1000) + ' to pay.';
    }

    async function follow() {
      for (var ms = 2000; ; ms = Math.min(ms * 1.3, 10000)) {
        var before = last;
        var answer = await ask('/booking/' + encodeURIComponent(token), { cache: 'no-store', headers: { 'Accept': 'application/json' } }, 10000);
        if (answer.status === 404) { show({ state: 'unknown' }); return; }
        if (answer.status === 200 && answer.body && texts[answer.body.state]) {
          show(answer.body);
          if (final[last]) { return; }
          if (last !== before) { ms = 2000; }
        }
        await nap(spread(Math.max(ms, answer.retryAfter * 1000)));
      }
    }

    if (last === 'unknown' || !token) { show({ state: 'unknown' }); return; }
    if (final[last]) { return; }
    tick();
    setInterval(tick, 1000);
    follow();
  }

  if (el('book')) { booking(); }
  if (el('result')) { result(el('result')); }
}());
