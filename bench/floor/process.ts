/**
 * The baseline: the limit of transport and disk without decisions. Each request commits one row durably, in a group
 * with others, before its response.
 */
import { GroupCommit } from './group-commit.ts'
import { FLOOR_MARK, type FloorOptions } from './options.ts'
import { STACKS } from './stacks.ts'

const options = JSON.parse(process.argv[2] ?? '') as FloorOptions
const frame = `{${FLOOR_MARK}"}`
const answer = `{${FLOOR_MARK}${'a'.repeat(Math.max(0, options.answerBytes - frame.length))}"}`
const commits = new GroupCommit(options)

process.on('disconnect', () => process.exit(0))
await STACKS[options.stack](options.socketPath, answer, (done) => commits.record(done))
process.send?.('listening')
