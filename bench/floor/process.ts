/**
 * The floor: what transport and disk allow when nothing is decided. For each request one row of the agreed size is
 * committed durably, together with all that came in the meantime, before the answer goes out.
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
