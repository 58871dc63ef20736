import { randomBytes, randomInt } from 'node:crypto'
import type { Randomness } from '../../sync/ports.ts'

const STEPS = 2 ** 32

export const systemRandomness: Randomness = {
  fraction: () => randomInt(STEPS) / STEPS,
  token: () => randomBytes(16).toString('base64url'),
}
