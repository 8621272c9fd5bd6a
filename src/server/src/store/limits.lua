-- Several limits, charged all or none, by the server's own clock.
--
-- KEYS           what is stored of each limit, in order; then, for each charge with a lease call, what is kept of its
--                lessee; then, where there is an id, what is remembered of the decision under it; then, with any e, the
--                marker
-- ARGV[1]        take: charges, if every limit has the units
--                check: says what take would, and charges nothing
--                back: undoes a take, by its id; at most what would be there had it never been
--                take and check settle leases and lend; back has none
-- ARGV[5i-3]     limit i's algorithm: b token bucket, e token bucket that is empty where its state was lost, g GCRA,
--                f fixed window, c calendar window, s sliding window, l sliding log
-- ARGV[5i-2]     its capacity (burst), 1 to 999999999999; for l at most 1000
-- ARGV[5i-1]     b, e, g: so many units (1 to 999999999999) come back ...   f, s, l: the window in microseconds
--                                            c: "at:at:at:at", where the windows before, at and after the caller's
--                                            clock begin, and where the last of them ends
-- ARGV[5i]       ... in so many microseconds; g: in lowest terms           f, c, s, l: 0
--                b, e: "period:keep", where a full bucket is kept for so many microseconds all the same
-- ARGV[5i+1]     the cost, 1 to 999999999999
--                b, e: "cost:seq:acked:kept:returned:wanted:demand" with a lease call; its cost may be 0
--                Periods and windows are 1 us to 30 days.
--
-- Gives three numbers for each limit: 0 (has the units), 1 (will have them), 2 (never) or 3 (will have them, and has lent
-- units); whole units left; and the microseconds to wait. The charges were made if every first number is 0. For a limit
-- with a lease call, six more: 0 (new), 1 (came before) or 2 (a later one came before); the units that the lessee has
-- now; how many were lent now, and came back; its room for more, and the rate at which it earns them. A decision that was taken under the same id within REMEMBERED_MS is
-- not taken again. `back` gives nothing.
--
-- What is stored, times in microseconds:
--   b  "b:tokens:fraction:period:at"          whole units, and fraction/period of the next, at that time
--      "b:tokens:fraction:period:at:units:units:rate:rate:demand:demand", with what was lent of each in the generation of
--      that time, and in the one before, where that is anything
--   g  "g:at:fraction:over"                   when all that was spent is earned again, and fraction/over of a microsecond
--   f  "f:start:spent:window"                 also of c
--   s  "s:start:current:previous:window"
--   l  a list of "at:cost"
--   a lessee: "r:seq:kept:granted:room:rate:period:demand:generation", of its last call
--   an id: "i:at", when its charges were made
--   the marker: "m:at", since when state may be lost; 0: never
-- No key means that nothing was spent; a key expires when it would say so. The marker alone does not expire.
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

-- The same for any a; beyond 2^53 the quotient is only known to be large. Most products are exact as they are, and below
-- 2^53 no quotient is rounded up to the next whole number.
local function scale(a, b, c)
  if a * b < MAX then
    local quotient = math.floor(a * b / c)
    return quotient, a * b - quotient * c
  end
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

-- Made when something is lent, or may have been lost: see make_lender.
local make_lender, lender

local function make_bucket()
  local bucket = {}

  -- What the bucket itself earns of its rate: the rest is lent.
  local function own_rate(limit, state)
    return math.max(0, limit.units - (state.rate or 0) - (state.rate_before or 0))
  end

  -- Microseconds from `from` until `missing` more units are there, rounded up.
  local function time_to_gain(limit, state, missing, from)
    local rate = own_rate(limit, state)
    if rate == 0 then
      return MAX
    end
    local whole, rest = scale(missing, limit.per, rate)
    return math.min(MAX, whole + math.ceil((rest - state.fraction) / rate)) + math.max(0, state.at - from)
  end

  -- Moves the state on to `to`, where there is room for so many units. A clock that stepped back adds nothing. A time
  -- too far ahead is a fault and is mended.
  local function refill(limit, state, to, room)
    if state.at > to then
      if state.at - to > MAX_SKEW then
        state.at = to
      end
    else
      local gained, rest = scale(to - state.at, own_rate(limit, state), limit.per)
      rest = rest + state.fraction
      if rest >= limit.per then
        gained, rest = gained + 1, rest - limit.per
      end
      state.tokens, state.fraction, state.at = state.tokens + gained, rest, to
    end
    if state.tokens >= room then
      state.tokens, state.fraction = room, 0
    end
  end

  -- A state has more numbers where something is lent.
  function bucket.load(key, limit)
    local text = redis.call('GET', key)
    if not text then
      local state = { tokens = limit.capacity, fraction = 0, at = now }
      if limit.learns then
        lender = lender or make_lender()
        local since = lender.lost_since()
        if not since then
          return nil
        elseif since > 0 then
          state.tokens, state.at = 0, since
          lender.all(limit, state, refill)
          return state, state.at < since
        end
      end
      return state, false
    end
    local tokens, fraction, period, at, lent = string.match(text, '^b:(%d+):(%d+):(%d+):(%d+)(.*)$')
    if not tokens then
      return nil
    end
    tokens, fraction, period, at = tonumber(tokens), tonumber(fraction), tonumber(period), tonumber(at)
    if period ~= limit.per or fraction >= period then
      fraction = 0
    end
    local state = { tokens = tokens, fraction = fraction, at = at }
    if lent == '' then
      refill(limit, state, now, limit.capacity)
    else
      lender = lender or make_lender()
      if not lender.refill(limit, state, period, lent, refill) then
        return nil
      end
    end
    return state, state.at < at or state.tokens < tokens
  end

  function bucket.wait(limit, state, cost)
    if state.tokens < cost then
      if state.lent then
        return lender.wait(limit, state, cost, refill, time_to_gain)
      end
      return math.min(MAX, time_to_gain(limit, state, cost - state.tokens, now))
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
    local room = state.lent and lender.room(limit, state) or limit.capacity
    if state.tokens >= room then
      state.tokens, state.fraction = room, 0
    end
  end

  function bucket.left(_, state)
    return state.tokens
  end

  function bucket.store(key, limit, state)
    local full_at = now
    if state.tokens < limit.capacity then
      -- By its whole rate, once all that is lent is forgotten.
      local alone = { fraction = state.fraction, at = state.at }
      full_at = now + time_to_gain(limit, alone, limit.capacity - state.tokens, now)
    end
    if state.lent and lender.is_any(state) then
      full_at = math.min(MAX, math.max(full_at + lender.lasts(state), now + limit.keep))
      put(key, full_at, 'b:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f',
        state.tokens, state.fraction, limit.per, state.at, state.lent, state.lent_before, state.rate, state.rate_before,
        state.demand, state.demand_before)
    else
      full_at = math.min(MAX, math.max(full_at, now + limit.keep))
      put(key, full_at, 'b:%.0f:%.0f:%.0f:%.0f', state.tokens, state.fraction, limit.per, state.at)
    end
  end

  return bucket
end

-- What a bucket lends, in generations of LEASE_LIFE: units and room for units (`lent`), a part of the refill rate, and as
-- part of the reckoning what its lessees would use. And `lost_since`: since when a bucket has lent all it can of which
-- nothing is stored; false where the marker is malformed.
-- First what a bucket does beside what it lends: `refill` reads what is lent and moves the state on to now, with the
-- bucket's own refill from one generation to the next; nothing where it is malformed. `all` does so with all that a bucket
-- can lend. `is_any`, `wait`, `room` and `lasts` are of a state that has lent.
-- Then for a charge with a lease call: `call` reads it, and the cost beside it; `load` gives what is kept of the lessee,
-- nil where that is malformed; `settle` takes in the report and `grant` lends; `store` keeps what was said.
function make_lender()
  local LEASE_LIFE, AHEAD, LEAST, RESERVE, PLENTY, MAX_DEMAND = 2000000, 1000000, 2, 32, 8, 2 ^ 42
  local lender, lost_since = {}, nil

  -- Not by %, whose rest is not exact for the largest times.
  local function generation(at)
    return (at - math.fmod(at, LEASE_LIFE)) / LEASE_LIFE
  end

  -- 0: never. The marker is the last key: where it is gone, so is the rest.
  function lender.lost_since()
    if lost_since == nil then
      lost_since = numbers(KEYS[#KEYS], '^m:(%d+)$')
      if lost_since == nil then
        lost_since = now
        redis.call('SET', KEYS[#KEYS], string.format('m:%.0f', now))
      end
    end
    return lost_since
  end

  function lender.room(limit, state)
    return math.max(0, limit.capacity - state.lent - state.lent_before)
  end

  function lender.is_any(state)
    return state.lent + state.lent_before + state.rate + state.rate_before + state.demand + state.demand_before > 0
  end

  local function set(state, lent, lent_before, rate, rate_before, demand, demand_before)
    state.lent, state.lent_before = lent, lent_before
    state.rate, state.rate_before = rate, rate_before
    state.demand, state.demand_before = demand, demand_before
  end

  local function turn(state)
    set(state, 0, state.lent, 0, state.rate, 0, state.demand)
  end

  local function advance(limit, state, refill)
    local at, turned, last = state.at, generation(state.at), generation(now)
    while turned < last and lender.is_any(state) do
      turned = turned + 1
      refill(limit, state, turned * LEASE_LIFE, lender.room(limit, state))
      turn(state)
    end
    refill(limit, state, now, lender.room(limit, state))
    if state.at < at then
      -- The stored time was a fault: when it was lent cannot be told.
      set(state, state.lent + state.lent_before, 0, state.rate + state.rate_before, 0,
        state.demand + state.demand_before, 0)
    end
  end

  function lender.refill(limit, state, period, text, refill)
    local lent, before, rate, rate_before, demand, demand_before =
      string.match(text, '^:(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$')
    if not lent then
      return false
    end
    set(state, tonumber(lent), tonumber(before), tonumber(rate), tonumber(rate_before), tonumber(demand),
      tonumber(demand_before))
    if period ~= limit.per then
      -- A rate of another period: never less of it.
      for _, name in ipairs({ 'rate', 'rate_before' }) do
        local whole, rest = scale(state[name], limit.per, period)
        state[name] = whole + (rest > 0 and 1 or 0)
      end
    end
    advance(limit, state, refill)
    return true
  end

  function lender.all(limit, state, refill)
    set(state, limit.capacity, 0, limit.units, 0, 0, 0)
    advance(limit, state, refill)
  end

  -- Until there is room beside what is lent, or that is forgotten.
  function lender.wait(limit, state, cost, refill, time_to_gain)
    local later, at = { tokens = state.tokens, fraction = state.fraction, at = state.at }, now
    set(later, state.lent, state.lent_before, state.rate, state.rate_before, state.demand, state.demand_before)
    while lender.is_any(later) do
      local there = math.min(MAX, at + time_to_gain(limit, later, cost - later.tokens, at))
      local turned_at = math.min(MAX, (generation(math.max(later.at, at)) + 1) * LEASE_LIFE)
      local room = lender.room(limit, later)
      if cost <= room and there <= turned_at then
        return there - now
      end
      refill(limit, later, turned_at, room)
      turn(later)
      at = turned_at
      if cost <= later.tokens then
        return at - now
      end
    end
    return math.min(MAX, at - now + time_to_gain(limit, later, cost - later.tokens, at))
  end

  -- How long anything is lent, at the most.
  function lender.lasts(state)
    return (generation(math.max(state.at, now)) + 2) * LEASE_LIFE - now
  end

  function lender.call(text)
    local cost, seq, acked, kept, returned, wanted, demand =
      string.match(text, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$')
    return {
      cost = tonumber(cost),
      seq = tonumber(seq),
      acked = tonumber(acked),
      kept = tonumber(kept),
      returned = tonumber(returned),
      wanted = tonumber(wanted),
      demand = tonumber(demand),
    }
  end

  function lender.load(key)
    local text = redis.call('GET', key)
    if not text then
      return { key = key, seq = 0 }
    end
    local seq, kept, granted, room, rate, period, demand, at =
      string.match(text, '^r:(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$')
    if not seq or tonumber(period) == 0 then
      return nil
    end
    return {
      key = key,
      seq = tonumber(seq),
      kept = tonumber(kept),
      granted = tonumber(granted),
      room = tonumber(room),
      rate = tonumber(rate),
      period = tonumber(period),
      demand = tonumber(demand),
      generation = tonumber(at),
    }
  end

  -- Of a lease that is counted in neither generation any more, nothing comes back.
  local function release(state, lease, name, units)
    local ago = generation(state.at) - lease.generation
    local place = ago == 0 and name or (ago == 1 and name .. '_before' or nil)
    if not place then
      return 0
    end
    local released = math.min(units, state[place])
    state[place] = state[place] - released
    return released
  end

  -- 0: it is new. 1: it came before, and there is nothing to do but to say the same again. 2: a later one came before.
  function lender.settle(limit, state, lease, call, taken)
    lease.settled, lease.returned = 0, 0
    if lease.seq >= call.seq then
      lease.settled = lease.seq == call.seq and 1 or 2
      return
    elseif taken then
      lease.settled = 2
      return
    end
    if not state.lent then
      set(state, 0, 0, 0, 0, 0, 0)
    end
    local kept = 0
    if lease.seq > 0 then
      -- A rate of another period: never more of it than is counted for it.
      release(state, lease, 'rate', (scale(lease.rate, limit.per, lease.period)))
      release(state, lease, 'demand', lease.demand)
      local counted = release(state, lease, 'lent', lease.kept + lease.granted + lease.room)
      local unheard, there = 0, counted
      if call.acked < lease.seq then
        -- An answer that never arrived: what it lent has not been spent, and will not be.
        unheard, there = math.min(lease.granted, counted), math.min(lease.kept, counted)
      end
      -- Of what a larger capacity has lent, only as much as there is room for now is lent further.
      kept = math.min(call.kept, there, lender.room(limit, state))
      lease.returned = math.min(call.returned, there - kept) + unheard
      state.lent = state.lent + kept
      state.tokens = math.min(state.tokens + lease.returned, lender.room(limit, state))
    end
    lease.kept = kept
  end

  -- Where all want more than there is, a share of the refill by the lessee's demand, and room for what it earns in half
  -- a second. 0 and 0 where that is not worth it, or the bucket itself has plenty: who lives on a rate asks for no more
  -- until its lease ends.
  local function share_rate(limit, state, demand, has)
    local per_second = scale(limit.units, AHEAD, limit.per)
    local all = math.min(MAX_DEMAND, state.demand + state.demand_before)
    local above = all - per_second
    local plenty = math.max(LEAST, math.ceil(math.max(limit.capacity, per_second) / PLENTY))
    if above <= 0 or state.tokens >= plenty then
      return 0, 0
    end
    local function share(whole)
      return (muldiv(math.min(demand, all), whole, all))
    end
    local lendable = limit.units - math.floor(limit.units / RESERVE)
    local rate = math.min(share(lendable), math.max(0, lendable - state.rate - state.rate_before))
    local earned = scale(rate, AHEAD, limit.per)
    local most = math.max(LEAST, math.min(share(math.floor(limit.capacity / 2)), math.floor(earned / 2) + 1))
    local free = math.max(0, lender.room(limit, state) - state.tokens)
    local room = math.min(math.max(0, most - has), free)
    if earned < math.max(1, math.floor(4 * per_second / above))
      or has + room < math.max(LEAST, math.floor(2 * per_second / above)) then
      return 0, 0
    end
    return rate, room
  end

  -- No more than a quarter of what is left beside the cost, and to all no more than half of the capacity.
  function lender.grant(limit, state, lease, call, cost)
    local most = math.max(0, math.floor(limit.capacity / 2) - state.lent - state.lent_before)
    local granted = math.min(call.wanted, most, math.floor(math.max(0, state.tokens - cost) / 4))
    if granted < LEAST then
      granted = 0
    end
    state.tokens, state.lent, state.demand = state.tokens - granted, state.lent + granted, state.demand + call.demand
    local rate, room = 0, 0
    if call.wanted > 0 then
      rate, room = share_rate(limit, state, call.demand, lease.kept + granted)
    end
    state.lent, state.rate = state.lent + room, state.rate + rate
    lease.seq, lease.granted, lease.room, lease.demand = call.seq, granted, room, call.demand
    lease.rate, lease.period, lease.generation = rate, limit.per, generation(state.at)
  end

  function lender.store(lease)
    local text = string.format('r:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f', lease.seq, lease.kept, lease.granted,
      lease.room, lease.rate, lease.period, lease.demand, lease.generation)
    redis.call('SET', lease.key, text, 'PX', 2 * LEASE_LIFE / 1000)
  end

  return lender
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

local make = {
  b = make_bucket,
  e = make_bucket,
  g = make_gcra,
  f = make_fixed,
  c = make_calendar,
  s = make_sliding,
  l = make_log,
}
local algorithms = {}
local mode, count = ARGV[1], (#ARGV - 1) / 5
-- How many keys are accounted for.
local keys = count

local charges = {}
for i = 1, count do
  local letter = ARGV[5 * i - 3]
  local algorithm = algorithms[letter] or make[letter]()
  algorithms[letter] = algorithm
  local limit = {
    capacity = tonumber(ARGV[5 * i - 2]),
    units = tonumber(ARGV[5 * i - 1]),
    boundaries = ARGV[5 * i - 1],
    per = tonumber(ARGV[5 * i]),
    keep = 0,
    learns = letter == 'e',
  }
  if not limit.per then
    local per, keep = string.match(ARGV[5 * i], '^(%d+):(%d+)$')
    limit.per, limit.keep = tonumber(per), tonumber(keep)
  end
  local state, mended = algorithm.load(KEYS[i], limit)
  if not state then
    return redis.error_reply(mended or MALFORMED)
  end
  local charge = {
    algorithm = algorithm,
    limit = limit,
    cost = tonumber(ARGV[5 * i + 1]),
    state = state,
    mended = mended,
    verdict = 0,
    wait = 0,
  }
  if not charge.cost then
    lender = lender or make_lender()
    keys = keys + 1
    charge.call = lender.call(ARGV[5 * i + 1])
    charge.cost = charge.call.cost
    charge.lease = lender.load(KEYS[keys])
    if not charge.lease then
      return redis.error_reply(MALFORMED)
    end
  end
  charges[i] = charge
end

local id, taken = KEYS[keys + 1], nil
if algorithms.e and keys + 1 == #KEYS then
  id = nil
end
if id then
  taken = numbers(id, '^i:(%d+)$')
  if taken == false then
    return redis.error_reply(MALFORMED)
  end
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

local admitted = true
for i = 1, count do
  local charge = charges[i]
  local limit, state, cost = charge.limit, charge.state, charge.cost
  if charge.lease then
    lender.settle(limit, state, charge.lease, charge.call, taken)
  end
  if not taken then
    if cost > limit.capacity then
      charge.verdict = 2
      admitted = false
    else
      local wait = charge.algorithm.wait(limit, state, cost)
      if wait then
        charge.verdict, charge.wait = state.lent and lender.is_any(state) and 3 or 1, wait
        admitted = false
      end
    end
  end
end

local spending = mode == 'take' and admitted and not taken
local reply, length = {}, 0
for i = 1, count do
  local charge = charges[i]
  local algorithm, limit, state, lease = charge.algorithm, charge.limit, charge.state, charge.lease
  local storing = charge.mended
  if spending and charge.cost > 0 then
    algorithm.spend(limit, state, charge.cost)
    storing = true
  end
  if lease and lease.settled == 0 then
    -- What would be taken is not lent: after a check it is taken in another call.
    lender.grant(limit, state, lease, charge.call, mode == 'check' and admitted and charge.cost or 0)
    lender.store(lease)
    storing = true
  end
  if storing then
    algorithm.store(KEYS[i], limit, state)
  end
  reply[length + 1] = charge.verdict
  reply[length + 2] = algorithm.left(limit, state)
  reply[length + 3] = charge.wait
  length = length + 3
  if lease then
    reply[length + 1] = lease.settled
    reply[length + 2] = lease.settled < 2 and lease.kept + lease.granted or 0
    reply[length + 3] = lease.settled == 0 and lease.granted or 0
    reply[length + 4] = lease.returned
    reply[length + 5] = lease.settled < 2 and lease.room or 0
    reply[length + 6] = lease.settled < 2 and lease.rate or 0
    length = length + 6
  end
end
if spending and id then
  redis.call('SET', id, string.format('i:%.0f', now), 'PX', REMEMBERED_MS)
end
return reply
