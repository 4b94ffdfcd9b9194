-- settle.lua: this payment has paid for this attempt; any phase -> paid.
-- KEYS[1..4] see prelude.lua   KEYS[5] adm:late
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4] payment id
-- ARGV[5] the gateway's transaction id
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: paid; second (the seat is paid by another payment or
-- transaction, or this transaction was decided to go back); not_owner (late money);
-- damaged; unknown. Repeated it says paid and keeps the first time of payment.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if row.phase == 'paid' then
  if row.payment == ARGV[4] and row.transaction == ARGV[5] then return {'paid', raw, now} end
  return {'second', raw, now}
end
if row.payment ~= ARGV[4] then return {'not_owner', raw, now} end
local decided = redis.call('HGET', KEYS[5], ARGV[5])
if decided then
  local ok, d = pcall(cjson.decode, decided)
  if not ok or type(d) ~= 'table' then return {'damaged', KEYS[5], now} end
  if d.decision == 'refund' then return {'second', raw, now} end
end
leave_paying(row)
row.phase, row.transaction, row.paid_at, row.doubt = 'paid', ARGV[5], now, nil
return {'paid', save(ARGV[2], row, now + LOOK_PAID), now}
