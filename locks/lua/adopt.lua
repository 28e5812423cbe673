-- adopt: give a hold another holder id, for whoever takes it over; all of its locks or none. Harmless when run twice.
--
-- KEYS[1..]  for each lock its hash, then of a reader the old and the new hold key, in turns
-- ARGV[1]  lease_ms to leave at least; 0 to leave the time to live as it is
-- ARGV[2..]  for each lock the old field, the new field, then the number of keys beside the hash, in turns
--
-- Returns  {1, ms left} adopted, with one count; {-1, 0} the hold is not there
local lease_ms = tonumber(ARGV[1])

-- What is left of a hold: of the hash, or of a reader's own key under either name.
local function left_of(k, beside)
    if beside == 0 then
        return redis.call('PTTL', KEYS[k])
    end
    return math.max(redis.call('PTTL', KEYS[k + 1]), redis.call('PTTL', KEYS[k + 2]))
end

local k = 1
for a = 2, #ARGV, 3 do
    local lock, old, new, beside = KEYS[k], ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2])
    local held = redis.call('HEXISTS', lock, old) + redis.call('HEXISTS', lock, new)
    if held == 0 or left_of(k, beside) <= 0 then
        return gone(lock, '')
    end
    k = k + 1 + beside
end

local least
k = 1
for a = 2, #ARGV, 3 do
    local lock, old, new, beside = KEYS[k], ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2])
    local left = math.max(left_of(k, beside), lease_ms)
    -- First: this is allowed when memory is full, and once something was written the rest is too.
    if redis.call('PTTL', lock) < left then
        redis.call('PEXPIRE', lock, string.format('%.0f', left))
    end
    if beside > 0 then
        redis.call('SET', KEYS[k + 2], '1', 'PX', string.format('%.0f', left))
        redis.call('DEL', KEYS[k + 1])
    end
    if redis.call('HEXISTS', lock, old) == 1 then
        -- Added first: a hash that is empty for a moment would lose its time to live.
        redis.call('HSET', lock, new, '1')
        redis.call('HDEL', lock, old)
    end
    least = math.min(least or left, left)
    k = k + 1 + beside
end
return {1, least}
