/**
 * The floor: what transport and disk allow when nothing is decided. For each request one row of the agreed size is
 * committed durably, together with all that came in the meantime, before the answer goes out.
 */
import { GroupCommit } from './group-commit.ts'
import { FLOOR_MARK, type FloorOrder } from './order.ts'
import { STACKS } from './stacks.ts'

const order = JSON.parse(process.argv[2] ?? '') as FloorOrder
const frame = `{${FLOOR_MARK}"}`
const answer = `{${FLOOR_MARK}${'a'.repeat(Math.max(0, order.answerBytes - frame.length))}"}`
const commits = new GroupCommit(order)

process.on('disconnect', () => process.exit(0))
await STACKS[order.stack](order.socketPath, answer, (done) => commits.record(done))
process.send?.('listening')
