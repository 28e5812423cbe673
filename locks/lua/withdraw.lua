-- withdraw: leave word that this holder id takes nothing any more, for requests of it that may still be on their way.
--
-- KEYS[1]  tombstone of the holder id
-- ARGV[1]  how long it counts, in ms
--
-- Returns  1
redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])
return 1
