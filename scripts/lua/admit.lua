-- admit.lua: decide booking requests, in order, and take a seat for each that may
-- have one. Requests that arrive together come in one call, so that a rejection
-- costs almost nothing.
-- KEYS[1..4] see prelude.lua   KEYS[5] sale:config   KEYS[6] booking:open
-- KEYS[7] booking:opens_at     KEYS[8] candidates:valid   KEYS[9] adm:total
-- then candidate:email:<code> of each request, adm:level:<L> of each level that is
-- asked for, and hold:idem:<code>:<key hash> of each request that has such a key
-- ARGV[1] clock offset, [2] how many requests, [3] how many levels, then the levels'
-- ids, the requests' codes, their e-mails, the number of each one's level, and the
-- rest of each, which only a seat needs, with spaces between: 'take' or 'check'
-- (which takes nothing); the Redis TIME in ms after which nobody waits for the
-- answer, or 0 (a request that a stall delivers late has been told no, and must
-- take no seat); suffix of a fresh attempt id; and, with an idempotency key, its
-- number and the SHA-256 of normalised code, e-mail and level, else 0 and -
-- Clock: Redis TIME plus the offset.
-- Returns {'decided', answers, now}, or {'unknown', '', now}. Answers are one text,
-- since a reply's parts are a good share of what a refusal costs: for each request
-- a word, a space and its detail, with NUL between requests:
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
local requests, levels = tonumber(ARGV[2]), tonumber(ARGV[3])
local at_code = 3 + levels
local at_email, at_level, at_rest = at_code + requests, at_code + 2 * requests, at_code + 3 * requests

-- Everything that decides is read in a few calls for all requests.
local fields = {'cap', 'hold_ms', 'currency'}
for l = 1, levels do
  fields[2 + 2 * l], fields[3 + 2 * l] = 'cap:' .. ARGV[3 + l], 'fee:' .. ARGV[3 + l]
end
local config = redis.call('HMGET', KEYS[5], unpack(fields))
local cap, hold, currency = tonumber(config[1] or ''), tonumber(config[2] or ''), config[3]
local values = redis.call('MGET', KEYS[6], KEYS[7], unpack(KEYS, 9, 9 + requests + levels))
local rows = redis.call('HMGET', KEYS[2], unpack(ARGV, at_code + 1, at_email))
local valid = redis.call('SMISMEMBER', KEYS[8], unpack(ARGV, at_code + 1, at_email))
local switch, opens_at, total = values[1], tonumber(values[2] or ''), whole(values[3])
local open = switch == '1' or (not switch and opens_at and now >= opens_at)
local closed_until = '0'
if not switch and opens_at then closed_until = string.format('%.0f', opens_at) end
local caps, fees, admitted = {}, {}, {} -- by level; the last as this call leaves it
for l = 1, levels do
  caps[l], fees[l] = tonumber(config[2 + 2 * l] or ''), tonumber(config[3 + 2 * l] or '')
  admitted[l] = whole(values[3 + requests + l])
end
local fresh_rows = {} -- what this call itself has written

local function remember(code, text, idem_key, mine, body)
  fresh_rows[code] = text
  if idem_key then
    redis.call('SET', idem_key, cjson.encode({v = 1, attempt = mine, body = body}), 'PX', STASH_TTL)
  end
  return text
end

-- attempt_of reads what only a seat needs; most requests are refused before.
local function attempt_of(i)
  local mode, wanted_until, suffix, idem, body = string.match(ARGV[at_rest + i], '^(%a+) (%d+) (%S+) (%d+) (%S+)$')
  wanted_until, idem = tonumber(wanted_until), tonumber(idem)
  return epoch .. '-' .. suffix, mode == 'take', wanted_until > 0 and now - tonumber(ARGV[1]) > wanted_until,
    body, idem > 0 and KEYS[9 + requests + levels + idem]
end

local function decide(i)
  local code, email, l = ARGV[at_code + i], ARGV[at_email + i], tonumber(ARGV[at_level + i])
  local level, level_cap, fee = ARGV[3 + l], caps[l], fees[l]
  if not config[2 + 2 * l] then return 'invalid_level' end
  if not (cap and level_cap and fee and currency and hold) then return 'damaged', KEYS[5] end

  local on_file = values[3 + i]
  local row, raw = decode(fresh_rows[code] or rows[i])
  if row == false then return 'damaged', KEYS[2] end

  if row and on_file == email then
    local mine, take, expired, body, idem_key = attempt_of(i)
    if row.attempt == mine then
      redis.call('HSET', KEYS[2], code, raw)
      return 'admitted', raw
    end
    local paying_open = not row.deadline or now < row.deadline
    local entry = idem_key and redis.call('GET', idem_key)
    if entry and row.phase ~= 'refused' then
      local ok, e = pcall(cjson.decode, entry)
      if ok and type(e) == 'table' and e.attempt == row.attempt then
        if e.body ~= body then return 'mismatch' end
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
      if not take then return 'would_admit' end
      if expired then return 'expired' end
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
  if valid[i] == 0 or not on_file then return 'invalid_code' end
  if on_file ~= email then return 'email_mismatch' end

  local seats, level_key = admitted[l], KEYS[9 + requests + l]
  if not total then return 'damaged', KEYS[9] end
  if not seats then return 'damaged', level_key end
  if seats >= level_cap then return 'level_full' end
  if total >= cap then return 'sold_out' end
  local mine, take, expired, body, idem_key = attempt_of(i)
  if not take then return 'would_admit' end
  if expired then return 'expired' end

  total = redis.call('INCR', KEYS[9])
  admitted[l] = redis.call('INCR', level_key)
  return 'admitted', remember(code, save(code, {
    attempt = mine, level = level, slot = total, phase = 'new', admitted_at = now,
    hold = hold, amount = fee, currency = currency,
  }, now + LOOK_NEW), idem_key, mine, body)
end

-- A request that cannot be decided fails alone: the others were told right. Redis
-- refuses a script's first write or none, so a refused request has written nothing.
local answers = {}
for i = 1, requests do
  local ok, word, detail = pcall(decide, i)
  if not ok then
    detail = type(word) == 'table' and word.err or tostring(word)
    if string.find(detail, 'READONLY', 1, true) then
      -- This is no primary: none of its answers counts.
      return redis.error_reply('READONLY ' .. detail)
    end
    word = 'failed'
  end
  answers[i] = detail and word .. ' ' .. detail or word
end
return {'decided', table.concat(answers, '\0'), now}
