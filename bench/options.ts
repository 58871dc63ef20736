import { parseArgs } from 'node:util'
import { wholeNumber, wholeNumbers } from '../scripts/whole-number.ts'
import { FLOOR_STACKS, type FloorStack } from './floor/options.ts'

export interface Options {
  readonly connections: readonly number[]
  readonly seconds: number
  readonly rounds: number
  readonly stateDir: string
  readonly stacks: readonly FloorStack[]
  readonly bodies: 'unique' | 'repeated'
  readonly format: 'text' | 'markdown' | 'json'
}

export const USAGE = `npm run bench -- [OPTION...]

Access decisions per second over the agent's Unix socket, beside the same transport and commit without an engine (the floor),
and beside Redis, Valkey and PostgreSQL with an equivalent debit and Cerbos without one, as far as they are installed.

  --connections LIST   connections that ask in turn, each waiting for its answer (1,16,64)
  --seconds N          length of one measurement (1.5)
  --rounds N           alternating rounds; the table shows medians over them (5)
  --state-dir DIR      where the servers keep their data while measured; not tmpfs (.tallygate in the working folder)
  --floor LIST         transports of the floor: ${FLOOR_STACKS.join(', ')} (net,agent-socket)
  --bodies KIND        unique: no body is sent twice; repeated: each connection repeats one (unique)
  --markdown           the tables as Markdown
  --json               the figures of every round as JSON instead of the table
  --help               this text
`

const NUMBER_MAX = 10_000

/** @throws Error for invalid arguments */
export function parseOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      connections: { type: 'string', default: '1,16,64' },
      seconds: { type: 'string', default: '1.5' },
      rounds: { type: 'string', default: '5' },
      'state-dir': { type: 'string', default: '.tallygate' },
      floor: { type: 'string', default: 'net,agent-socket' },
      bodies: { type: 'string', default: 'unique' },
      markdown: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
    },
  })
  return {
    connections: wholeNumbers('--connections', values.connections, NUMBER_MAX),
    seconds: amount('--seconds', values.seconds),
    rounds: wholeNumber('--rounds', values.rounds, NUMBER_MAX),
    stateDir: values['state-dir'],
    stacks: values.floor.split(',').map((name) => stack(name.trim())),
    bodies: bodies(values.bodies),
    format: values.json ? 'json' : values.markdown ? 'markdown' : 'text',
  }
}

function amount(option: string, text: string): number {
  const number = Number(text)
  if (number > 0 && number <= 3600) return number
  throw new Error(`${option} takes a number of seconds up to 3600, not '${text}'`)
}

function stack(text: string): FloorStack {
  const known = FLOOR_STACKS.find((name) => name === text)
  if (known === undefined) throw new Error(`--floor takes ${FLOOR_STACKS.join(', ')}, not '${text}'`)
  return known
}

function bodies(text: string): Options['bodies'] {
  if (text === 'unique' || text === 'repeated') return text
  throw new Error(`--bodies takes unique or repeated, not '${text}'`)
}
