-- late.lua: decide, once for each transaction, what becomes of money that is no
-- plain payment of its seat: its attempt gets a seat, paid, or the money goes back.
-- KEYS[1..4] see prelude.lua   KEYS[5] adm:total   KEYS[6] adm:level:<the attempt's>
-- KEYS[7] sale:config   KEYS[8] adm:late
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4] payment id
-- ARGV[5] the gateway's transaction id  ARGV[6] level  ARGV[7] amount, minor units
-- ARGV[8] currency  ARGV[9] 'late', 'second' or 'other_than_ordered'
-- Clock: Redis TIME plus the offset.
-- Returns {word, detail, now, at}, at being when it was decided:
--   paid row: the seat is this attempt's, paid by this transaction
--   refund reason: 'second', 'other_than_ordered', 'epoch' (of another sale),
--   'candidate' (has another seat), 'level' (there is none such), 'full'
--   damaged key, unknown: nothing was decided
-- Repeated it returns the first decision.
if not epoch then return {'unknown', '', now, now} end
mark()
local code, attempt, payment, transaction, level = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local function decided(word, detail)
  redis.call('HSET', KEYS[8], transaction, cjson.encode({
    v = 1, decision = word, reason = word == 'refund' and detail or nil, attempt = attempt, payment = payment, at = now,
  }))
  return {word, detail, now, now}
end

local row, raw = fetch(code)
if row == false then return {'damaged', KEYS[2], now, now} end
local first = redis.call('HGET', KEYS[8], transaction)
if first then
  local ok, d = pcall(cjson.decode, first)
  if not ok or type(d) ~= 'table' or type(d.at) ~= 'number' then return {'damaged', KEYS[8], now, now} end
  if d.decision == 'refund' then return {'refund', d.reason, now, d.at} end
  if row and row.attempt == attempt and row.transaction == transaction then return {'paid', raw, now, d.at} end
  return {'damaged', KEYS[2], now, now} -- a paid seat is never left
end

local owner = row and row.attempt == attempt
if owner and row.phase == 'paid' and row.payment == payment and row.transaction == transaction then
  return {'paid', raw, now, row.paid_at}
end
if ARGV[9] == 'other_than_ordered' then return decided('refund', 'other_than_ordered') end
if ARGV[9] == 'second' or (owner and (row.phase == 'paid' or row.payment ~= payment)) then return decided('refund', 'second') end
if owner then
  leave_paying(row)
  row.phase, row.transaction, row.paid_at, row.doubt = 'paid', transaction, now, nil
  return decided('paid', save(code, row, now + LOOK_PAID))
end
if string.sub(attempt, 1, #epoch + 1) ~= epoch .. '-' then return decided('refund', 'epoch') end
if row then return decided('refund', 'candidate') end

local config = redis.call('HMGET', KEYS[7], 'cap', 'cap:' .. level, 'hold_ms')
local cap, level_cap, hold = tonumber(config[1] or ''), tonumber(config[2] or ''), tonumber(config[3] or '')
if cap and hold and not config[2] then return decided('refund', 'level') end
local total, seats = count(KEYS[5]), count(KEYS[6])
if not (cap and hold and level_cap) then return {'damaged', KEYS[7], now, now} end
if not total then return {'damaged', KEYS[5], now, now} end
if not seats then return {'damaged', KEYS[6], now, now} end
if seats >= level_cap or total >= cap then return decided('refund', 'full') end
redis.call('INCR', KEYS[6])
return decided('paid', save(code, {
  attempt = attempt, level = level, slot = redis.call('INCR', KEYS[5]), phase = 'paid', admitted_at = now, hold = hold,
  amount = tonumber(ARGV[7]), currency = ARGV[8], deadline = now, payment = payment, transaction = transaction, paid_at = now,
}, now + LOOK_PAID))
