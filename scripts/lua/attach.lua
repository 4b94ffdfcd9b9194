-- attach.lua: give a new attempt its payment; new -> payable.
-- KEYS[1..4] see prelude.lua   KEYS[5] hold:attempt:<attempt>   KEYS[6] hold:payment:<payment>
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4] payment id
-- ARGV[5] stash of the attempt (JSON)  ARGV[6] stash of the payment (JSON)
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: attached; has_payment; not_owner; damaged; unknown.
-- The deadline is admission plus the hold, unless a take-over brought one along.
-- Repeated with the same payment it says attached again.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if row.payment == ARGV[4] then return {'attached', raw, now} end
if row.payment or row.phase ~= 'new' then return {'has_payment', raw, now} end
row.payment, row.phase, row.back = ARGV[4], 'payable', nil
row.deadline = row.deadline or (row.admitted_at + row.hold)
redis.call('SET', KEYS[5], ARGV[5], 'PX', STASH_TTL)
redis.call('SET', KEYS[6], ARGV[6], 'PX', STASH_TTL)
return {'attached', save(ARGV[2], row, now + LOOK_PAYABLE), now}
