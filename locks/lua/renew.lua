-- renew: keep alive the holds that are still there. Creates nothing and shortens nothing, so it may run twice or late.
--
-- KEYS[1]  guard: a key in the same slot that never exists
-- KEYS[2..]  lock hash: holder id -> hold count
-- ARGV[1]  lease_ms
-- ARGV[2..]  holder id
--
-- Returns  one result a lock: 1 renewed, 0 not held, 2 the key holds something that is no lock
local guard, lease_ms = KEYS[1], tonumber(ARGV[1])
local results = {}
for i = 2, #KEYS do
    local lock, holder = KEYS[i], ARGV[i]
    local held = redis.pcall('HEXISTS', lock, holder)
    if held == 1 then
        if redis.call('PTTL', lock) < lease_ms then
            redis.call('PEXPIRE', lock, ARGV[1])
        end
        results[i - 1] = 1
    else
        -- A node that must not write (a replica, a master short of replicas) refuses this instead of answering "not held".
        redis.call('DEL', guard)
        results[i - 1] = held == 0 and 0 or 2
    end
end
return results
