-- Several token buckets, charged all or none, by the server's own clock.
--
-- KEYS[i]        bucket i
-- ARGV[4i-3]     its capacity, 1 to 999999999999
-- ARGV[4i-2]     its refill: so many units (1 to 999999999999) ...
-- ARGV[4i-1]     ... in so many microseconds (1 to 30 days), in lowest terms
-- ARGV[4i]       the cost, 1 to 999999999999
--
-- Gives three numbers for each bucket: 0 (has the units), 1 (will have them) or 2 (never); whole units left; and the
-- microseconds to wait. The charges were made if every first number is 0.
--
-- A bucket is the text "tokens:fraction:period:at": whole units, the part of the next unit as fraction/period, and the
-- time in microseconds at which both were true. No key means a full bucket; a key expires when it would be full.
--
-- Numbers are doubles, exact up to 2^53: what could grow beyond that is divided in steps (muldiv).

local MAX = 9007199254740991
local MAX_SKEW = 60000000
local MARGIN_MS = 1000

-- The whole part and the rest of (a * b + add) / c, exactly, for a < c <= 2^42, b < 2^45, add < c.
local function muldiv(a, b, c, add)
  local quotient, rest = 0, 0
  if a * b < MAX - c then
    rest = a * b
    quotient = math.floor(rest / c)
    rest = rest - quotient * c
  else
    for step = 4, 0, -1 do
      local digit = math.floor(b / 512 ^ step) % 512
      local number = rest * 512 + a * digit
      local whole = math.floor(number / c)
      quotient = quotient * 512 + whole
      rest = number - whole * c
    end
  end
  rest = rest + add
  if rest >= c then
    return quotient + 1, rest - c
  end
  return quotient, rest
end

-- Microseconds until `missing` more units are there, rounded up.
local function time_to_gain(missing, refill, period, fraction)
  local periods = math.floor(missing / refill)
  if periods > MAX / period then
    return MAX
  end
  local whole, rest = muldiv(missing - periods * refill, period, refill, 0)
  return math.min(MAX, periods * period + whole + math.ceil((rest - fraction) / refill))
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local buckets, admitted = {}, true

for i, key in ipairs(KEYS) do
  local bucket = {
    capacity = tonumber(ARGV[4 * i - 3]),
    refill = tonumber(ARGV[4 * i - 2]),
    period = tonumber(ARGV[4 * i - 1]),
    cost = tonumber(ARGV[4 * i]),
    fraction = 0,
    at = now,
  }
  bucket.tokens = bucket.capacity
  -- GET and not MGET: on a key of another type it fails, where MGET would say that there is none.
  local stored = redis.call('GET', key)
  if stored then
    local tokens, fraction, period, at = string.match(stored, '^(%d+):(%d+):(%d+):(%d+)$')
    if not tokens then
      return redis.error_reply('TOLLGATE the stored state of a bucket is malformed')
    end
    tokens, fraction, period, at = tonumber(tokens), tonumber(fraction), tonumber(period), tonumber(at)
    bucket.tokens = tokens
    if period == bucket.period and fraction < period then
      bucket.fraction = fraction
    end
    if at > now then
      -- The clock stepped back: nothing is added. A time too far ahead is a fault and is mended.
      if at - now <= MAX_SKEW then
        bucket.at = at
      end
    else
      local elapsed = now - at
      local periods = math.floor(elapsed / bucket.period)
      if periods > (bucket.capacity - tokens) / bucket.refill then
        bucket.tokens = bucket.capacity
      else
        local whole, rest =
          muldiv(elapsed - periods * bucket.period, bucket.refill, bucket.period, bucket.fraction)
        bucket.tokens = tokens + periods * bucket.refill + whole
        bucket.fraction = rest
      end
    end
    if bucket.tokens >= bucket.capacity then
      bucket.tokens = bucket.capacity
      bucket.fraction = 0
    end
    bucket.mended = bucket.at < at or bucket.tokens < tokens
  end
  bucket.ahead = bucket.at - now
  bucket.wait = 0
  if bucket.cost > bucket.capacity then
    bucket.verdict = 2
    admitted = false
  elseif bucket.tokens >= bucket.cost then
    bucket.verdict = 0
  else
    bucket.verdict = 1
    admitted = false
    bucket.wait = math.min(MAX,
      bucket.ahead + time_to_gain(bucket.cost - bucket.tokens, bucket.refill, bucket.period, bucket.fraction))
  end
  buckets[i] = bucket
end

local reply = {}
for i, key in ipairs(KEYS) do
  local bucket = buckets[i]
  if admitted then
    bucket.tokens = bucket.tokens - bucket.cost
  end
  if admitted or bucket.mended then
    local full_in = bucket.ahead
      + time_to_gain(bucket.capacity - bucket.tokens, bucket.refill, bucket.period, bucket.fraction)
    redis.call('SET', key,
      string.format('%.0f:%.0f:%.0f:%.0f', bucket.tokens, bucket.fraction, bucket.period, bucket.at),
      'PX', string.format('%.0f', math.ceil(full_in / 1000) + MARGIN_MS))
  end
  reply[3 * i - 2] = bucket.verdict
  reply[3 * i - 1] = bucket.tokens
  reply[3 * i] = bucket.wait
end
return reply
