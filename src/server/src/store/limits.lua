-- Several limits, charged all or none, by the server's own clock.
--
-- KEYS[i]        what is stored of limit i
-- KEYS[last]     one more key than limits: what is remembered of this decision, under its id
-- ARGV[1]        take: charges, if every limit has the units
--                check: says what take would, and charges nothing
--                back: undoes a take, by its id; at most what would be there had it never been
-- ARGV[5i-3]     limit i's algorithm: b token bucket, g GCRA, f fixed window, c calendar window, s sliding window,
--                l sliding log
-- ARGV[5i-2]     its capacity (burst), 1 to 999999999999; for l at most 1000
-- ARGV[5i-1]     b, g: so many units (1 to 999999999999) come back ...   f, s, l: the window in microseconds
--                                            c: "at:at:at:at", where the windows before, at and after the caller's
--                                            clock begin, and where the last of them ends
-- ARGV[5i]       ... in so many microseconds, in lowest terms             f, c, s, l: 0
--                b: "period:keep", where a full bucket is kept for so many microseconds all the same
-- ARGV[5i+1]     the cost, 1 to 999999999999
--                Periods and windows are 1 us to 30 days.
--
-- Gives three numbers for each limit: 0 (has the units), 1 (will have them) or 2 (never); whole units left; and the
-- microseconds to wait. The charges were made if every first number is 0. A decision that was taken under the same id
-- within REMEMBERED_MS is not taken again. `back` gives nothing.
--
-- What is stored, times in microseconds:
--   b  "b:tokens:fraction:period:at"          whole units, and fraction/period of the next, at that time
--   g  "g:at:fraction:over"                   when all that was spent is earned again, and fraction/over of a microsecond
--   f  "f:start:spent:window"                 also of c
--   s  "s:start:current:previous:window"
--   l  a list of "at:cost"
--   an id: "i:at", when its charges were made
-- No key means that nothing was spent; a key expires when it would say so.
--
-- Numbers are doubles, exact up to 2^53: what could grow beyond that is divided in steps (muldiv). The same arithmetic,
-- with its reasons, is in tollgate-core.

local MAX = 9007199254740991
local MAX_SKEW = 60000000
local MARGIN_MS = 1000
local REMEMBERED_MS = 10000
local MALFORMED = 'TOLLGATE what is stored of a limit is malformed'
local APART = 'TOLLGATE_CLOCK this clock is in none of the calendar windows around the clock of the endpoint'

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- The whole part and the rest of a * b / c, exactly, for a <= c <= 2^42 and b < 2^45.
local function muldiv(a, b, c)
  local quotient, rest = 0, 0
  if a * b < MAX then
    quotient = math.floor(a * b / c)
    return quotient, a * b - quotient * c
  end
  for step = 4, 0, -1 do
    local number = rest * 512 + a * (math.floor(b / 512 ^ step) % 512)
    local whole = math.floor(number / c)
    quotient = quotient * 512 + whole
    rest = number - whole * c
  end
  return quotient, rest
end

-- The same for any a; beyond 2^53 the quotient is only known to be large.
local function scale(a, b, c)
  local times = math.floor(a / c)
  local quotient, rest = muldiv(a - times * c, b, c)
  return times * b + quotient, rest
end

-- The numbers, four at the most, that are stored as text of this form; nil where there is no key, false where the text
-- is another. GET and not MGET: on a key of another type it fails, where MGET would say that there is none.
local function numbers(key, form)
  local text = redis.call('GET', key)
  if not text then
    return nil
  end
  local first, second, third, fourth = string.match(text, form)
  if not first then
    return false
  end
  return tonumber(first), tonumber(second), tonumber(third), tonumber(fourth)
end

local function ttl(full_at)
  return math.max(0, math.ceil((full_at - now) / 1000)) + MARGIN_MS
end

local function put(key, full_at, form, ...)
  redis.call('SET', key, string.format(form, ...), 'PX', ttl(full_at))
end

-- The algorithms are made when a limit needs them, since what a script defines is made anew for each call. Of each,
-- `load` gives the state as it is now and whether loading has mended it (nil where what is stored is malformed, nil and
-- the error where it is another);
-- `wait` the microseconds to wait, nil where the cost can be spent; `spend`, `left` and `store` do what they say.
-- `back` undoes what was spent at a time that is not after now. A bucket that was short of those units has kept refill
-- that it would have had no room for, so that much of them does not come back: else they could be spent twice.

local function make_bucket()
  local bucket = {}

  -- Microseconds until `missing` more units are there, rounded up.
  local function time_to_gain(limit, state, missing)
    local whole, rest = scale(missing, limit.per, limit.units)
    return math.min(MAX, whole + math.ceil((rest - state.fraction) / limit.units)) + math.max(0, state.at - now)
  end

  function bucket.load(key, limit)
    local tokens, fraction, period, at = numbers(key, '^b:(%d+):(%d+):(%d+):(%d+)$')
    if tokens == false then
      return nil
    end
    local state = { tokens = limit.capacity, fraction = 0, at = now }
    if not tokens then
      return state, false
    end
    state.tokens = tokens
    if period == limit.per and fraction < period then
      state.fraction = fraction
    end
    if at > now then
      -- The clock stepped back: nothing is added. A time too far ahead is a fault and is mended.
      if at - now <= MAX_SKEW then
        state.at = at
      end
    else
      local gained, rest = scale(now - at, limit.units, limit.per)
      rest = rest + state.fraction
      if rest >= limit.per then
        gained, rest = gained + 1, rest - limit.per
      end
      state.tokens, state.fraction = tokens + gained, rest
    end
    if state.tokens >= limit.capacity then
      state.tokens, state.fraction = limit.capacity, 0
    end
    return state, state.at < at or state.tokens < tokens
  end

  function bucket.wait(limit, state, cost)
    if state.tokens < cost then
      return math.min(MAX, time_to_gain(limit, state, cost - state.tokens))
    end
  end

  function bucket.spend(_, state, cost)
    state.tokens = state.tokens - cost
  end

  function bucket.back(limit, state, cost, at)
    local refilled, rest = scale(now - at, limit.units, limit.per)
    local fraction, borrow = state.fraction - rest, 0
    if fraction < 0 then
      fraction, borrow = fraction + limit.per, 1
    end
    if refilled < cost then
      state.tokens, state.fraction = state.tokens + cost - refilled - borrow, fraction
    end
    if state.tokens >= limit.capacity then
      state.tokens, state.fraction = limit.capacity, 0
    end
  end

  function bucket.left(_, state)
    return state.tokens
  end

  function bucket.store(key, limit, state)
    local full_at = now + time_to_gain(limit, state, limit.capacity - state.tokens)
    put(key, math.max(full_at, now + limit.keep), 'b:%.0f:%.0f:%.0f:%.0f', state.tokens, state.fraction, limit.per, state.at)
  end

  return bucket
end

local function make_gcra()
  local gcra = {}

  -- How long it takes to earn so many units: whole microseconds, and the rest over the rate's units.
  local function time_of(limit, units)
    return scale(units, limit.per, limit.units)
  end

  function gcra.load(key, limit)
    local at, fraction, over = numbers(key, '^g:(%d+):(%d+):(%d+)$')
    if at == false then
      return nil
    end
    local state = { at = now, fraction = 0 }
    if not at then
      return state, false
    end
    local was = at
    if over ~= limit.units or fraction >= over then
      -- Another rate: never earlier than it was.
      at = math.min(MAX, at + (fraction > 0 and 1 or 0))
      fraction = 0
    end
    if at < now then
      return state, false
    end
    local most, part = time_of(limit, limit.capacity)
    local ahead, bound = at - now, most + MAX_SKEW
    if ahead > bound or (ahead == bound and fraction > part) then
      at, fraction = math.min(MAX, now + most), part
    end
    state.at, state.fraction = at, fraction
    return state, at < was
  end

  function gcra.wait(limit, state, cost)
    local most, part = time_of(limit, limit.capacity - cost)
    local ahead = state.at - now
    if ahead > most or (ahead == most and state.fraction > part) then
      return math.min(MAX, ahead - most + (state.fraction > part and 1 or 0))
    end
  end

  function gcra.spend(limit, state, cost)
    local whole, part = time_of(limit, cost)
    local fraction, carry = state.fraction + part, 0
    if fraction >= limit.units then
      fraction, carry = fraction - limit.units, 1
    end
    state.at = math.min(MAX, math.min(MAX, state.at + whole) + carry)
    state.fraction = fraction
  end

  function gcra.back(limit, state, cost, at)
    local whole, part = time_of(limit, cost)
    whole = whole - (now - at)
    if whole < 0 then
      return
    end
    state.at, state.fraction = state.at - whole, state.fraction - part
    if state.fraction < 0 then
      state.at, state.fraction = state.at - 1, state.fraction + limit.units
    end
  end

  function gcra.left(limit, state)
    local spent, rest = scale(state.at - now, limit.units, limit.per)
    return math.max(0, limit.capacity - spent - math.ceil((rest + state.fraction) / limit.per))
  end

  function gcra.store(key, limit, state)
    put(key, state.at + (state.fraction > 0 and 1 or 0), 'g:%.0f:%.0f:%.0f', state.at, state.fraction, limit.units)
  end

  return gcra
end

-- The start of the window that now is in.
local function aligned(window)
  return now - now % window
end

-- Where a stored window lies: nil ahead of now by no more than clocks may differ, else how many of its lengths ago.
-- One that is further ahead is a clock fault: what was spent belongs to the window of now.
local function windows_ago(start, window)
  if start <= now then
    return math.floor((now - start) / window), false
  end
  if start - now > MAX_SKEW then
    return 0, true
  end
end

-- The count of the window that now is in: it begins at `first` and is `length` long.
local function count_of(key, first, length)
  local start, spent, window = numbers(key, '^f:(%d+):(%d+):(%d+)$')
  if start == false then
    return nil
  end
  local state = { start = first, spent = 0, window = length }
  if not start then
    return state, false
  end
  local ago = windows_ago(start, window)
  if not ago then
    state.start, state.spent, state.window = start, spent, window
  elseif ago == 0 then
    state.spent = spent
  end
  -- In other windows than those in which it was spent, it must end when the caller is told that it does.
  return state, state.spent > 0 and (state.start ~= start or state.window ~= window)
end

local function make_fixed()
  local fixed = {}

  function fixed.load(key, limit)
    return count_of(key, aligned(limit.units), limit.units)
  end

  function fixed.wait(limit, state, cost)
    if state.spent + cost > limit.capacity then
      return math.min(MAX, state.start + state.window - now)
    end
  end

  function fixed.spend(_, state, cost)
    state.spent = state.spent + cost
  end

  function fixed.back(_, state, cost, at)
    if at >= state.start then
      state.spent = math.max(0, state.spent - cost)
    end
  end

  function fixed.left(limit, state)
    return math.max(0, limit.capacity - state.spent)
  end

  function fixed.store(key, _, state)
    put(key, state.start + state.window, 'f:%.0f:%.0f:%.0f', state.start, state.spent, state.window)
  end

  return fixed
end

-- By this server's clock and the caller's boundaries.
local function make_calendar()
  local calendar = make_fixed()

  function calendar.load(key, limit)
    local start
    for boundary in string.gmatch(limit.boundaries, '%d+') do
      local at = tonumber(boundary)
      if at > now then
        if start then
          return count_of(key, start, at - start)
        end
        break
      end
      start = at
    end
    return nil, APART
  end

  return calendar
end

local function make_sliding()
  local sliding = {}

  function sliding.load(key, limit)
    local start, current, previous, window = numbers(key, '^s:(%d+):(%d+):(%d+):(%d+)$')
    if start == false then
      return nil
    end
    local state = { start = aligned(limit.units), current = 0, previous = 0, window = limit.units }
    if not start then
      return state, false
    end
    local ago = windows_ago(start, window)
    if not ago then
      state.start, state.current, state.previous, state.window = start, current, previous, window
    elseif ago == 0 then
      state.current, state.previous = current, previous
    elseif ago == 1 then
      state.previous = current
    end
    return state, state.start < start or state.window ~= window
  end

  -- How much of the window before is still covered.
  local function covered(state)
    return math.max(0, state.window - math.max(0, now - state.start))
  end

  local function estimate(state)
    local whole, rest = muldiv(covered(state), state.previous, state.window)
    return state.current + whole + (rest > 0 and 1 or 0)
  end

  function sliding.wait(limit, state, cost)
    local most = limit.capacity - cost
    if estimate(state) <= most then
      return nil
    end
    local wait
    if state.current <= most then
      -- Enough of the window before will have left this one's cover.
      wait = covered(state) - muldiv(most - state.current, state.window, state.previous)
    else
      -- Not in this window: in the next, when enough of this one has left.
      wait = covered(state) + state.window - muldiv(most, state.window, state.current)
    end
    return math.min(MAX, math.max(0, wait) + math.max(0, state.start - now))
  end

  function sliding.spend(_, state, cost)
    state.current = state.current + cost
  end

  function sliding.back(_, state, cost, at)
    if at >= state.start then
      state.current = math.max(0, state.current - cost)
    elseif at >= state.start - state.window then
      state.previous = math.max(0, state.previous - cost)
    end
  end

  function sliding.left(limit, state)
    return math.max(0, limit.capacity - estimate(state))
  end

  function sliding.store(key, _, state)
    local windows = state.current > 0 and 2 or (state.previous > 0 and 1 or 0)
    put(key, state.start + windows * state.window, 's:%.0f:%.0f:%.0f:%.0f',
      state.start, state.current, state.previous, state.window)
  end

  return sliding
end

local function make_log()
  local log = {}

  function log.load(key, limit)
    local state = { entries = {}, spent = 0, expired = 0, rewrite = false }
    local last = 0
    for _, text in ipairs(redis.call('LRANGE', key, 0, -1)) do
      local at, cost = string.match(text, '^(%d+):(%d+)$')
      if not at then
        return nil
      end
      at, cost = tonumber(at), tonumber(cost)
      if at + limit.units > now then
        state.entries[#state.entries + 1] = { at = at, cost = cost }
        state.spent = state.spent + cost
        last = at
      else
        state.expired = state.expired + 1
      end
    end
    if last - now > MAX_SKEW then
      state.entries, state.rewrite = { { at = now, cost = state.spent } }, true
    end
    return state, state.rewrite
  end

  function log.wait(limit, state, cost)
    local left, most, wait = state.spent, limit.capacity - cost, nil
    for _, entry in ipairs(state.entries) do
      if left <= most then
        break
      end
      left = left - entry.cost
      wait = math.max(0, math.min(MAX, entry.at + limit.units) - now)
    end
    return wait
  end

  function log.spend(_, state, cost)
    local last = state.entries[#state.entries]
    state.added = { at = last and math.max(last.at, now) or now, cost = cost }
    state.spent = state.spent + cost
  end

  -- Of entries with one time and cost any will do: they expire together.
  function log.back(_, state, cost, at)
    for i, entry in ipairs(state.entries) do
      if entry.at == at and entry.cost == cost then
        state.removed = string.format('%.0f:%.0f', at, cost)
        table.remove(state.entries, i)
        return
      end
    end
  end

  function log.left(limit, state)
    return math.max(0, limit.capacity - state.spent)
  end

  local function push(key, entry)
    redis.call('RPUSH', key, string.format('%.0f:%.0f', entry.at, entry.cost))
  end

  function log.store(key, limit, state)
    if state.rewrite then
      redis.call('DEL', key)
      push(key, state.entries[1])
    elseif state.expired > 0 then
      redis.call('LTRIM', key, state.expired, -1)
    end
    if state.removed then
      redis.call('LREM', key, 1, state.removed)
    end
    if state.added then
      push(key, state.added)
    end
    local last = state.added or state.entries[#state.entries]
    if last then
      redis.call('PEXPIRE', key, ttl(last.at + limit.units))
    end
  end

  return log
end

local make =
  { b = make_bucket, g = make_gcra, f = make_fixed, c = make_calendar, s = make_sliding, l = make_log }
local algorithms = {}
local mode, count = ARGV[1], (#ARGV - 1) / 5
local id, taken = KEYS[count + 1], nil
if id then
  taken = numbers(id, '^i:(%d+)$')
  if taken == false then
    return redis.error_reply(MALFORMED)
  end
end

local charges, admitted = {}, true
for i = 1, count do
  local key, letter = KEYS[i], ARGV[5 * i - 3]
  local algorithm = algorithms[letter] or make[letter]()
  algorithms[letter] = algorithm
  local limit = {
    capacity = tonumber(ARGV[5 * i - 2]),
    units = tonumber(ARGV[5 * i - 1]),
    boundaries = ARGV[5 * i - 1],
    per = tonumber(ARGV[5 * i]),
    keep = 0,
  }
  if not limit.per then
    local per, keep = string.match(ARGV[5 * i], '^(%d+):(%d+)$')
    limit.per, limit.keep = tonumber(per), tonumber(keep)
  end
  local cost = tonumber(ARGV[5 * i + 1])
  local state, mended = algorithm.load(key, limit)
  if not state then
    return redis.error_reply(mended or MALFORMED)
  end
  local charge = { algorithm = algorithm, limit = limit, cost = cost, state = state, mended = mended, verdict = 0, wait = 0 }
  if not taken then
    if cost > limit.capacity then
      charge.verdict = 2
      admitted = false
    else
      local wait = algorithm.wait(limit, state, cost)
      if wait then
        charge.verdict, charge.wait = 1, wait
        admitted = false
      end
    end
  end
  charges[i] = charge
end

if mode == 'back' then
  if taken then
    for i, charge in ipairs(charges) do
      if taken <= now then
        charge.algorithm.back(charge.limit, charge.state, charge.cost, taken)
      end
      charge.algorithm.store(KEYS[i], charge.limit, charge.state)
    end
    redis.call('DEL', id)
  end
  return {}
end

local spending = mode == 'take' and admitted and not taken
local reply = {}
for i, charge in ipairs(charges) do
  if spending then
    charge.algorithm.spend(charge.limit, charge.state, charge.cost)
  end
  if spending or charge.mended then
    charge.algorithm.store(KEYS[i], charge.limit, charge.state)
  end
  reply[3 * i - 2] = charge.verdict
  reply[3 * i - 1] = charge.algorithm.left(charge.limit, charge.state)
  reply[3 * i] = charge.wait
end
if spending and id then
  redis.call('SET', id, string.format('i:%.0f', now), 'PX', REMEMBERED_MS)
end
return reply
