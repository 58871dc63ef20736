-- The debit that the agent makes, as Redis would: both accounts must hold the amount, then both are debited and the ledger
-- gets its entry. KEYS: line item account, action account, ledger. ARGV: amount, entry.
local amount = tonumber(ARGV[1])
if tonumber(redis.call('GET', KEYS[1])) < amount then return redis.error_reply('INSUFFICIENT_TOKENS') end
if tonumber(redis.call('GET', KEYS[2])) < amount then return redis.error_reply('ALLOCATION_EXHAUSTED') end
redis.call('DECRBY', KEYS[1], amount)
redis.call('DECRBY', KEYS[2], amount)
redis.call('RPUSH', KEYS[3], ARGV[2])
return 1
