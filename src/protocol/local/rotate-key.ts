import { z } from 'zod'
import { thumbprintText } from '../edge/device-key.ts'

/** `POST` on the agent's socket without a body; requires permission to administer. */
export const AGENT_ROTATE_KEY_PATH = '/tallygate/v1/rotate-key'

/** Sent once the request survives a power cut. Thumbprints of the current and the next key. */
export const keyRotation = z.strictObject({ key: thumbprintText, next: thumbprintText })
