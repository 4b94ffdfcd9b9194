-- allowlist_emails.lua: make the e-mails of some codes what the list in force says.
-- KEYS[1..14] see allowlist.lua   KEYS[15..] candidate:email:<code> of each code
-- ARGV[1..4] see allowlist.lua   ARGV[5] 'keep' when somebody may have had an attempt,
-- or ''   ARGV[6..] the codes
-- Clock: see allowlist.lua
-- Returns {word, detail, now, ...} as allowlist.lua says: seen_to.
-- An e-mail that was to change is changed. Who is on the list keeps one. So does who was
-- on a list in force and has a seat, for its mail and for whoever asks for the booking
-- again; and, with 'keep', whoever was: late money may make a paid seat of an attempt
-- that has ended. The e-mail of any other is removed, also of who has a seat: it came
-- with a list that was staged and never in force. Repeated it does the same again.
if not mine then return answer('superseded') end
local n = #KEYS - 14
if n > 0 then
  local codes = {unpack(ARGV, 6, 5 + n)}
  local changed = redis.call('HMGET', KEYS[10], unpack(codes))
  local listed = redis.call('SMISMEMBER', KEYS[6], unpack(codes))
  local was = redis.call('SMISMEMBER', KEYS[9], unpack(codes))
  local kept_yet = redis.call('SMISMEMBER', KEYS[11], unpack(codes))
  local seats = redis.call('HMGET', KEYS[2], unpack(codes))
  local put, written, kept, not_kept, gone = {}, {}, {}, {}, {}
  for i, code in ipairs(codes) do
    if changed[i] then
      put[#put + 1] = KEYS[14 + i]
      put[#put + 1] = changed[i]
      written[#written + 1] = code
    end
    if listed[i] == 0 and was[i] + kept_yet[i] > 0 and (seats[i] or ARGV[5] == 'keep') then
      kept[#kept + 1] = code
    else
      not_kept[#not_kept + 1] = code
      if listed[i] == 0 then gone[#gone + 1] = KEYS[14 + i] end
    end
  end
  if #put > 0 then
    redis.call('MSET', unpack(put))
    redis.call('HDEL', KEYS[10], unpack(written))
  end
  if #kept > 0 then redis.call('SADD', KEYS[11], unpack(kept)) end
  if #not_kept > 0 then redis.call('SREM', KEYS[11], unpack(not_kept)) end
  if #gone > 0 then redis.call('UNLINK', unpack(gone)) end
end
keep()
return answer('seen_to')
