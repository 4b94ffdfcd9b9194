-- admit.lua: decide one booking request and, if a seat is free, take it.
-- KEYS[1..4] see prelude.lua   KEYS[5] sale:config   KEYS[6] booking:open
-- KEYS[7] booking:opens_at     KEYS[8] candidates:valid
-- KEYS[9] candidate:email:<code>   KEYS[10] adm:total   KEYS[11] adm:level:<L>
-- KEYS[12] hold:idem:<code>:<key hash>; not given without an idempotency key
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] e-mail  ARGV[4] level
-- ARGV[5] suffix of a fresh attempt id  ARGV[6] 'take', or 'check' to take nothing
-- ARGV[7] SHA-256 of normalised code, e-mail and level
-- ARGV[8] Redis TIME in ms after which nobody waits for the answer, or 0: a request
--         that a stall delivers late has been told no, and must take no seat
-- Clock: Redis TIME plus the offset.
-- Returns {word, row or detail, now}:
--   admitted row, taken_over row: a seat is this attempt's; counts once acknowledged
--   replay row: the idempotency key's own attempt; written again, counts once acknowledged
--   duplicate row, mismatch, would_admit, unknown, invalid_level, invalid_code,
--   email_mismatch, level_full, sold_out: nothing was written
--   not_open opens_at (or 0): nothing was written
--   expired: a seat is free, but nobody waits for it any more; nothing was written
--   damaged key: a counter, the configuration or a row is not what it must be
-- Repeated with the same suffix it finds its own row, writes it again and says
-- admitted. A refusal only reads.
local code, email, level, mine = ARGV[2], ARGV[3], ARGV[4], nil
if not epoch then return {'unknown', '', now} end
mine = epoch .. '-' .. ARGV[5]

local config = redis.call('HMGET', KEYS[5], 'cap', 'cap:' .. level, 'fee:' .. level, 'currency', 'hold_ms')
if not config[2] then return {'invalid_level', '', now} end
local cap, level_cap = tonumber(config[1]), tonumber(config[2])
local fee, currency, hold = tonumber(config[3]), config[4], tonumber(config[5])
if not (cap and level_cap and fee and currency and hold) then return {'damaged', KEYS[5], now} end

local wanted_until = tonumber(ARGV[8])
local expired = wanted_until > 0 and now - tonumber(ARGV[1]) > wanted_until

-- What a refusal needs, in one call: e-mail on file, switch, counters.
local on_file, switch, total, taken = unpack(redis.call('MGET', KEYS[9], KEYS[6], KEYS[10], KEYS[11]))
total, taken = whole(total), whole(taken)
local row, raw = fetch(code)
if row == false then return {'damaged', KEYS[2], now} end

if row and on_file == email then
  if row.attempt == mine then
    redis.call('HSET', KEYS[2], code, raw)
    return {'admitted', raw, now}
  end
  local paying_open = not row.deadline or now < row.deadline
  local entry = KEYS[12] and redis.call('GET', KEYS[12])
  if entry and row.phase ~= 'refused' then
    local ok, e = pcall(cjson.decode, entry)
    if ok and type(e) == 'table' and e.attempt == row.attempt then
      if e.body ~= ARGV[7] then return {'mismatch', '', now} end
      -- A payable row's record is not known to be queued, so it is no 202 yet.
      if paying_open and (row.phase == 'held' or row.phase == 'paying') then
        redis.call('HSET', KEYS[2], code, raw)
        return {'replay', raw, now}
      end
    end
  end
  local lost = row.phase == 'new' and now - row.admitted_at >= TAKE_OVER
  -- A refused attempt is taken over once its record is known to be ended: no row
  -- would name it afterwards.
  local refused = row.phase == 'refused' and row.released
  if row.level == level and paying_open and (lost or refused) then
    if ARGV[6] == 'check' then return {'would_admit', '', now} end
    if expired then return {'expired', '', now} end
    local back = row.back
    if row.phase == 'refused' then
      back = {attempt = row.attempt, payment = row.payment, admitted_at = row.admitted_at}
    end
    local fresh = {
      attempt = mine, level = row.level, slot = row.slot, phase = 'new', admitted_at = now,
      hold = row.hold, amount = row.amount, currency = row.currency, deadline = row.deadline, back = back,
    }
    local text = save(code, fresh, now + LOOK_NEW)
    if KEYS[12] then
      redis.call('SET', KEYS[12], cjson.encode({v = 1, attempt = mine, body = ARGV[7]}), 'PX', STASH_TTL)
    end
    return {'taken_over', text, now}
  end
  return {'duplicate', raw, now}
end

if switch ~= '1' then
  local at = not switch and tonumber(redis.call('GET', KEYS[7]) or '')
  if not at or now < at then return {'not_open', at and string.format('%.0f', at) or '0', now} end
end
if redis.call('SISMEMBER', KEYS[8], code) == 0 or not on_file then return {'invalid_code', '', now} end
if on_file ~= email then return {'email_mismatch', '', now} end

if not total then return {'damaged', KEYS[10], now} end
if not taken then return {'damaged', KEYS[11], now} end
if taken >= level_cap then return {'level_full', '', now} end
if total >= cap then return {'sold_out', '', now} end
if ARGV[6] == 'check' then return {'would_admit', '', now} end
if expired then return {'expired', '', now} end

local slot = redis.call('INCR', KEYS[10])
redis.call('INCR', KEYS[11])
local text = save(code, {
  attempt = mine, level = level, slot = slot, phase = 'new', admitted_at = now,
  hold = hold, amount = fee, currency = currency,
}, now + LOOK_NEW)
if KEYS[12] then
  redis.call('SET', KEYS[12], cjson.encode({v = 1, attempt = mine, body = ARGV[7]}), 'PX', STASH_TTL)
end
return {'admitted', text, now}
