-- fence_admit: remember the newest fencing token and refuse an older one. Harmless when run twice.
--
-- Tokens are compared as decimal numbers of any length: those beyond 2^53 are not exact as numbers of Lua.
--
-- KEYS[1]  gate: the newest token admitted
-- ARGV[1]  token
--
-- Returns  {1, token} admitted; {0, newest token} refused
local gate, token = KEYS[1], ARGV[1]
local newest = redis.call('GET', gate)
if newest and not string.find(newest, '^%d+$') then
    return redis.error_reply('WRONGKIND the key holds no fencing token')
end
if newest and (#token < #newest or (#token == #newest and token < newest)) then
    -- A write that changes nothing: a node that must not write (a replica that lags) refuses it instead of answering.
    redis.call('PERSIST', gate)
    return {0, newest}
end
if newest ~= token then
    redis.call('SET', gate, token)
end
return {1, token}
