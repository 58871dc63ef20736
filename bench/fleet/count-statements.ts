/** Preloaded into a cloud process: counts the statements that it sends to its database, and tells them on request. */
import type Database from 'better-sqlite3'
import { createRequire } from 'node:module'
import { Socket } from 'node:net'

/** Messages of PostgreSQL's protocol that execute a statement: Execute and Query. */
const EXECUTING = new Set(['E', 'Q'].map((type) => type.charCodeAt(0)))

/** The driver's in the installation that is measured. */
const { prototype } = createRequire(process.argv[1] ?? '')('better-sqlite3') as typeof Database

let statements = 0

type Prepare = (this: Database.Database, source: string) => Database.Statement

const prepare = Reflect.get(prototype, 'prepare') as Prepare
prototype.prepare = function (this: Database.Database, source: string) {
  const statement = prepare.call(this, source)
  for (const name of ['run', 'get', 'all', 'iterate'] as const) {
    const call = statement[name].bind(statement) as (...values: unknown[]) => unknown
    Object.defineProperty(statement, name, {
      value: (...values: unknown[]) => {
        statements += 1
        return call(...values)
      },
    })
  }
  return statement
} as typeof prototype.prepare

// The driver of PostgreSQL is in the bundle, so its messages are counted. It writes only whole ones.
const address = process.argv[process.argv.indexOf('--db') + 1] ?? ''
const port = URL.canParse(address) ? Number(new URL(address).port || 5432) : null
const write = Reflect.get(Socket.prototype, 'write') as (...values: unknown[]) => boolean
Socket.prototype.write = function (this: Socket, ...values: unknown[]) {
  const [messages] = values
  if (this.remotePort === port && Buffer.isBuffer(messages)) {
    // A type of one byte, then the length of the rest. Only the first message of a connection has no type, but a zero.
    for (let at = 0; at < messages.length && messages[at] !== 0; at += 1 + messages.readUInt32BE(at + 1)) {
      if (EXECUTING.has(messages[at] ?? 0)) statements += 1
    }
  }
  return write.apply(this, values)
}

process.on('message', () => process.send?.(statements))
// A cloud ends when its work is done.
process.channel?.unref()
