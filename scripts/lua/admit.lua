-- admit.lua: decide booking requests, in order, and take a seat for each that may
-- have one. Requests that arrive together come in one call, so that a rejection
-- costs almost nothing.
-- KEYS[1..4] see prelude.lua   KEYS[5] sale:config   KEYS[6] booking:open
-- KEYS[7] booking:opens_at     KEYS[8] candidates:valid   KEYS[9] adm:total
-- then for each request: candidate:email:<code>, adm:level:<L>, and
-- hold:idem:<code>:<key hash> (without an idempotency key, the first again)
-- ARGV[1] clock offset, then for each request: code, e-mail, level, suffix of a
-- fresh attempt id, 'take' or 'check' (which takes nothing), SHA-256 of normalised
-- code, e-mail and level ('' without an idempotency key), and the Redis TIME in ms
-- after which nobody waits for the answer, or 0: a request that a stall delivers
-- late has been told no, and must take no seat
-- Clock: Redis TIME plus the offset.
-- Returns {'decided', '', now, word, detail, word, detail, ...}, or {'unknown', '', now}:
--   admitted row, taken_over row: a seat is this attempt's; counts once acknowledged
--   replay row: the idempotency key's own attempt; written again, counts once acknowledged
--   duplicate row, mismatch, would_admit, invalid_level, invalid_code,
--   email_mismatch, level_full, sold_out: nothing was written
--   not_open opens_at (or 0): nothing was written
--   expired: a seat is free, but nobody waits for it any more; nothing was written
--   damaged key: a counter, the configuration or a row is not what it must be
--   failed text: Redis refuses the write (no replica it wants, no memory, no disk);
--   nothing was written, and the answers of the others stand
-- Repeated with the same suffix it finds its own row, writes it again and says
-- admitted. A refusal only reads.
if not epoch then return {'unknown', '', now} end
local KEYS_EACH, ARGS_EACH = 3, 7
local requests = (#ARGV - 1) / ARGS_EACH

-- Everything that decides is read in a few calls for all requests.
local config, flat = {}, redis.call('HGETALL', KEYS[5])
for i = 1, #flat, 2 do config[flat[i]] = flat[i + 1] end
local cap, hold, currency = tonumber(config.cap or ''), tonumber(config.hold_ms or ''), config.currency

local keys, codes = {KEYS[6], KEYS[7], KEYS[9]}, {}
for i = 0, requests - 1 do
  keys[#keys + 1] = KEYS[10 + i * KEYS_EACH]
  keys[#keys + 1] = KEYS[11 + i * KEYS_EACH]
  codes[#codes + 1] = ARGV[2 + i * ARGS_EACH]
end
local values = redis.call('MGET', unpack(keys))
local rows = redis.call('HMGET', KEYS[2], unpack(codes))
local valid = redis.call('SMISMEMBER', KEYS[8], unpack(codes))
local switch, opens_at, total = values[1], tonumber(values[2] or ''), whole(values[3])
local open = switch == '1' or (not switch and opens_at and now >= opens_at)
local closed_until = '0'
if not switch and opens_at then closed_until = string.format('%.0f', opens_at) end
local taken, fresh_rows = {}, {} -- what this call itself has changed
local caps, fees = {}, {}         -- by level, read once

local function remember(code, text, idem_key, mine, body)
  fresh_rows[code] = text
  if idem_key then
    redis.call('SET', idem_key, cjson.encode({v = 1, attempt = mine, body = body}), 'PX', STASH_TTL)
  end
  return text
end

-- attempt_of reads what only a seat needs; most requests are refused before.
local function attempt_of(a, k)
  local wanted_until, body = tonumber(ARGV[a + 7]), ARGV[a + 6]
  return epoch .. '-' .. ARGV[a + 4], ARGV[a + 5] == 'take',
    wanted_until > 0 and now - tonumber(ARGV[1]) > wanted_until, body, body ~= '' and KEYS[k + 3]
end

local function decide(i)
  local a, k = 1 + i * ARGS_EACH, 9 + i * KEYS_EACH
  local code, email, level = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local level_key = KEYS[k + 2]

  local level_cap, fee = caps[level], fees[level]
  if not level_cap then
    local text = config['cap:' .. level]
    if not text then return 'invalid_level', '' end
    level_cap, fee = tonumber(text), tonumber(config['fee:' .. level] or '')
    if not (cap and level_cap and fee and currency and hold) then return 'damaged', KEYS[5] end
    caps[level], fees[level] = level_cap, fee
  end

  local on_file = values[4 + 2 * i]
  local row, raw = decode(fresh_rows[code] or rows[i + 1])
  if row == false then return 'damaged', KEYS[2] end

  if row and on_file == email then
    local mine, take, expired, body, idem_key = attempt_of(a, k)
    if row.attempt == mine then
      redis.call('HSET', KEYS[2], code, raw)
      return 'admitted', raw
    end
    local paying_open = not row.deadline or now < row.deadline
    local entry = idem_key and redis.call('GET', idem_key)
    if entry and row.phase ~= 'refused' then
      local ok, e = pcall(cjson.decode, entry)
      if ok and type(e) == 'table' and e.attempt == row.attempt then
        if e.body ~= body then return 'mismatch', '' end
        -- A payable row's record is not known to be queued, so it is no 202 yet.
        if paying_open and (row.phase == 'held' or row.phase == 'paying') then
          redis.call('HSET', KEYS[2], code, raw)
          return 'replay', raw
        end
      end
    end
    local lost = row.phase == 'new' and now - row.admitted_at >= TAKE_OVER
    -- A refused attempt is taken over once its record is known to be ended: no row
    -- would name it afterwards.
    local refused = row.phase == 'refused' and row.released
    if row.level == level and paying_open and (lost or refused) then
      if not take then return 'would_admit', '' end
      if expired then return 'expired', '' end
      local back = row.back
      if row.phase == 'refused' then
        back = {attempt = row.attempt, payment = row.payment, admitted_at = row.admitted_at}
      end
      return 'taken_over', remember(code, save(code, {
        attempt = mine, level = row.level, slot = row.slot, phase = 'new', admitted_at = now,
        hold = row.hold, amount = row.amount, currency = row.currency, deadline = row.deadline, back = back,
      }, now + LOOK_NEW), idem_key, mine, body)
    end
    return 'duplicate', raw
  end

  if not open then return 'not_open', closed_until end
  if valid[i + 1] == 0 or not on_file then return 'invalid_code', '' end
  if on_file ~= email then return 'email_mismatch', '' end

  local seats = taken[level_key] or whole(values[5 + 2 * i])
  if not total then return 'damaged', KEYS[9] end
  if not seats then return 'damaged', level_key end
  if seats >= level_cap then return 'level_full', '' end
  if total >= cap then return 'sold_out', '' end
  local mine, take, expired, body, idem_key = attempt_of(a, k)
  if not take then return 'would_admit', '' end
  if expired then return 'expired', '' end

  total = redis.call('INCR', KEYS[9])
  taken[level_key] = redis.call('INCR', level_key)
  return 'admitted', remember(code, save(code, {
    attempt = mine, level = level, slot = total, phase = 'new', admitted_at = now,
    hold = hold, amount = fee, currency = currency,
  }, now + LOOK_NEW), idem_key, mine, body)
end

-- A request that cannot be decided fails alone: the others were told right. Redis
-- refuses a script's first write or none, so a refused request has written nothing.
local answer = {'decided', '', now}
for i = 0, requests - 1 do
  local ok, word, detail = pcall(decide, i)
  if not ok then
    detail = type(word) == 'table' and word.err or tostring(word)
    if string.find(detail, 'READONLY', 1, true) then
      -- This is no primary: none of its answers counts.
      return redis.error_reply('READONLY ' .. detail)
    end
    word = 'failed'
  end
  answer[#answer + 1], answer[#answer + 2] = word, detail
end
return answer
