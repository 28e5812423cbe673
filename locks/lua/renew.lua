-- renew: keep alive the holds that are still there. Takes no lock and shortens nothing, so it may run twice or late.
--
-- KEYS[1..]  for each lock its hash, then the hold keys of a reader, in turns
-- ARGV[1]  lease_ms
-- ARGV[2..]  for each lock the field of the hold, then the number of its hold keys, in turns
--
-- Returns  one result a lock: 1 renewed, 0 not held, 2 the key holds something that is no lock, 3 refused for this key
local lease_ms = ARGV[1]
local results = {}
local k = 1
for a = 2, #ARGV, 2 do
    local lock, field, hold_keys = KEYS[k], ARGV[a], tonumber(ARGV[a + 1])
    local held = redis.pcall('HEXISTS', lock, field)
    if held == 1 then
        -- The hash comes first: this is allowed when memory is full, and once something was written the rest is too.
        if redis.call('PTTL', lock) < tonumber(lease_ms) then
            redis.call('PEXPIRE', lock, lease_ms)
        end
        local count = hold_keys
        if hold_keys > 1 then
            -- No more than there are: what left before a release and comes after it must not make a key again.
            count = math.min(count, tonumber(redis.pcall('HGET', lock, field)) or count)
        end
        for i = k + 1, k + count do
            keep_hold_key(KEYS[i], lease_ms)
        end
        results[#results + 1] = 1
    else
        -- A write that changes nothing: a node that must not write (a replica, a master short of replicas) refuses it instead of
        -- answering "not held".
        local refused = redis.pcall('HDEL', lock, field)
        if held == 0 then
            if refused ~= 0 then
                return refused
            end
            results[#results + 1] = 0
        elseif string.find(held['err'], 'WRONGTYPE', 1, true) then
            if not string.find(refused['err'], 'WRONGTYPE', 1, true) then
                return refused
            end
            results[#results + 1] = 2
        else
            results[#results + 1] = 3
        end
    end
    k = k + 1 + hold_keys
end
return results
