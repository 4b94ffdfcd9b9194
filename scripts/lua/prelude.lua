-- prelude.lua: what every script of the seat ledger begins with; lua.go puts it
-- before each of them. It reads the clock and the epoch and declares the helpers.
-- KEYS[1] adm:epoch  KEYS[2] adm:seen  KEYS[3] adm:due  KEYS[4] adm:mark
-- ARGV[1] clock offset in ms: 0, except in tests that move the clock
-- Clock: Redis TIME plus the offset, Unix ms. It alone decides openings,
-- deadlines and ends.
local LOOK_NEW = 120000      -- look at a row 'new' 2 min after admission
local LOOK_PAYABLE = 60000   -- look at a row 'payable' 1 min after
local LOOK_PAID = 60000      -- look at a row 'paid' until record and mail are done
local LOOK_REFUSED = 60000   -- look at a row 'refused' until its record is ended
local TAKE_OVER = 15000      -- a row 'new' this old has lost its request
local STASH_TTL = 172800000  -- hold:* and adm:mark live 48 h

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[1])
local epoch = redis.call('GET', KEYS[1])

-- mark writes something that replicates, so that WAIT behind any answer covers
-- the effect the answer rests on, also when this call found that effect done.
local function mark()
  redis.call('SET', KEYS[4], string.format('%.0f', now), 'PX', STASH_TTL)
end

local PHASES = {new = true, payable = true, held = true, refused = true, paying = true, paid = true}
local TEXTS = {'attempt', 'level', 'phase', 'currency'}
local NUMBERS = {'slot', 'admitted_at', 'hold', 'amount'}
local MAYBE_TEXTS = {'payment', 'owner', 'ended_by', 'transaction', 'extended'}
local MAYBE_NUMBERS = {'deadline', 'ends', 'paid_at', 'looks', 'misses', 'unfinished_at'}

local function has(row, names, kind, optional)
  for _, name in ipairs(names) do
    local v = row[name]
    if type(v) ~= kind and not (optional and v == nil) then return false end
  end
  return true
end

-- decode returns a row and its text; nothing when there is none; false when there
-- is one that cannot be read, or lacks what a decision needs.
local function decode(raw)
  if not raw then return nil end
  local ok, row = pcall(cjson.decode, raw)
  if not ok or type(row) ~= 'table' or not PHASES[row.phase]
    or not has(row, TEXTS, 'string') or not has(row, NUMBERS, 'number')
    or not has(row, MAYBE_TEXTS, 'string', true) or not has(row, MAYBE_NUMBERS, 'number', true)
    or (row.back ~= nil and type(row.back) ~= 'table') then
    return false
  end
  return row, raw
end

local function fetch(code) return decode(redis.call('HGET', KEYS[2], code)) end

-- save writes the row and when someone must look at it next; without a time
-- nobody need look again. It returns the row's text.
local function save(code, row, look)
  local raw = cjson.encode(row)
  redis.call('HSET', KEYS[2], code, raw)
  if look then
    redis.call('ZADD', KEYS[3], string.format('%.0f', look), code)
  else
    redis.call('ZREM', KEYS[3], code)
  end
  return raw
end

-- whole reads a counter's text; nil when it is missing or not a whole number >= 0 as
-- Redis writes them: what INCR would refuse must be refused before the first write.
local function whole(text)
  if not text or #text > 15 or not (text == '0' or string.match(text, '^[1-9]%d*$')) then return nil end
  return tonumber(text)
end

local function count(key) return whole(redis.call('GET', key)) end

-- leave_paying takes off the row what only 'paying' and its doubt carry.
local function leave_paying(row)
  row.owner, row.ends, row.taken_over = nil, nil, nil
  row.looks, row.misses, row.unfinished_at = nil, nil, nil
end

-- give_back takes the candidate's seat out of ledger and counters, or, if the
-- seat had been taken over from a refused attempt, gives it back to that one.
-- KEYS[5] adm:total, KEYS[6..] adm:level:<L> in the order of ARGV[first..].
-- It answers 'freed' or 'restored'; 'levels', having written nothing, when the
-- row's level is not among the keys. A damaged counter is left as it is.
local function give_back(code, row, first)
  local level
  for i = first, #ARGV do
    if ARGV[i] == row.level then level = KEYS[6 + i - first] end
  end
  if not level then return 'levels' end
  if row.back then
    row.attempt, row.payment, row.admitted_at = row.back.attempt, row.back.payment, row.back.admitted_at
    row.phase, row.back, row.released = 'refused', nil, true
    save(code, row, row.deadline)
    return 'restored'
  end
  redis.call('HDEL', KEYS[2], code)
  redis.call('ZREM', KEYS[3], code)
  for _, key in ipairs({KEYS[5], level}) do
    local n = count(key)
    if n and n > 0 then redis.call('DECR', key) end
  end
  return 'freed'
end
