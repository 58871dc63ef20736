/** A device whose service was ended is served again only with an enrollment token that was made after that. */
import type Sqlite from 'better-sqlite3'
import { query } from './query.ts'
import type { SharedState } from './shared-state.ts'
import { Violation } from './violation.ts'

/** Tokens are dated in whole seconds. */
const DATED_MS = 1_000

export class EnrollmentAudit {
  readonly #shared: SharedState
  /** By token. */
  readonly #madeAt = new Map<string, number>()

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  made(token: string): void {
    this.#madeAt.set(token, this.#shared.now())
  }

  /** An administrator has ended the service of a device, unless the process of the cloud ended before. */
  ended(database: Sqlite.Database, deviceId: string): void {
    const { terminated, now } = this.#shared
    if (isTerminated(database, deviceId) && !terminated.has(deviceId)) terminated.set(deviceId, now())
  }

  /** The cloud has enrolled a device. */
  enrolled(database: Sqlite.Database, deviceId: string, token: string): void {
    const { terminated, clocks } = this.#shared
    const endedAt = terminated.get(deviceId)
    if (endedAt === undefined || isTerminated(database, deviceId)) return
    terminated.delete(deviceId)
    this.#shared.look('I1')
    const madeAt = this.#madeAt.get(token) ?? -Infinity
    if (madeAt > endedAt - DATED_MS || !clocks.wereRightSince(madeAt)) return
    throw new Violation('I1', `${deviceId} can earn grants by a token of before ${endedAt}, when its service was ended`)
  }
}

function isTerminated(database: Sqlite.Database, deviceId: string): boolean {
  const sql = 'SELECT suspension_state FROM devices WHERE id = ?'
  return query(database, sql).pluck().get(deviceId) === 'TERMINATED'
}
