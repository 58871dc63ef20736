import { type GiveWay, giveWayTo } from '../cloud/runtime/give-way.ts'

/** For long work of a command: signals, such as Ctrl-C, are handled between its steps. */
export function givingWay(): GiveWay {
  return giveWayTo(() => performance.now(), setImmediate)
}
